"""The ranks of a run: launch, resources, heartbeat, signals, determinism.

Imports `core` and below.
"""
