"""The command line: one table of verbs, one thin file for each."""
