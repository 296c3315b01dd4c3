"""The command line: parsing, options, choices, messages and commands.

Imports `federation`, `callbacks`, `report` and below; only `experiment` and `__main__` import it.
"""
