"""A local step traced, rewritten by graph passes and compiled by inductor. Experimental; imported by `executors` only."""
