"""The folder of a run: written while it trains, read when it is resumed or compared."""
