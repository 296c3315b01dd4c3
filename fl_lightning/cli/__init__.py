"""The command line: parsing, options, choices, messages, subcommands. Only `experiment` imports it."""
