"""A simulation: server, local training, aggregation, client states, rounds.

Imports `executors`, `data`, `distributed` and below.
"""
