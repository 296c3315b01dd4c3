"""The command line: parsing, options, choices, messages and commands."""
