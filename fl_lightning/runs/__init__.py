"""The contents of a run folder: options, lock, metrics, resuming. Imports `distributed` and below."""
