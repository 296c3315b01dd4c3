"""The command line: parsing, options, choices, messages, and the subcommands. Imported by `experiment` only."""
