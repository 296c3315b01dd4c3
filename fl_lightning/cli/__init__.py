"""The command line: parsing, options, choices, messages and commands.

Imports `federation`, `callbacks`, `report` and below; `experiment`, `sweep` and `__main__` import
it.
"""
