"""The command line: parsing, options, choices, messages and commands.

Imports `federation`, `callbacks` and below; `experiment`, `lab` and `__main__` import it.
"""
