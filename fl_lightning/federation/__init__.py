"""A simulation: server, local training, aggregation, client states, rounds."""
