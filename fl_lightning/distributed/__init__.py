"""The ranks of a run: launch, signals, shared folder, determinism."""
