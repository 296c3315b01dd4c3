"""Tables of runs: what a file plans is run, resumed, recognized and laid out as in papers."""
