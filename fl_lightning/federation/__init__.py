"""Federation: the server, local training, aggregation, client states, and the way of a round."""
