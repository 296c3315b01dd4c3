"""Tables of runs: what a file plans is run, resumed, recognized and laid out as in papers.

Imports `report`, and of the simulator `experiment` and below.
"""
