"""Helpers: errors, files, locks, configuration, progress, optional dependencies."""
