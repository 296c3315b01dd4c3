"""What a run folder holds, written and read: options, lock, metrics, resuming. Imports `errors` and `distributed`."""
