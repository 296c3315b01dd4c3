"""Compiled local steps: traced, rewritten by graph passes, compiled by inductor.

Experimental: this folder uses private functions of PyTorch, which a new release may change.
`tests/executors/test_graph_passes.py` names the ones that are missing.

Imports `core`, `distributed` and below; only `executors` imports it.
"""
