"""Helpers: errors, files, locks, configuration, progress, optional dependencies; imported from the modules."""
