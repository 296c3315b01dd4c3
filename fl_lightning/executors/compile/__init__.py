"""A local step traced, rewritten by graph passes and compiled by inductor (experimental). Used by `executors`."""
