"""The commands that `fl_lightning.__main__` runs: `table`, `compare`, `analyze`, `partition`."""
