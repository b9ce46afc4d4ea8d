"""The command line: one table of commands, and one file per command."""
