"""Analyses of a session's memory, one module for each."""
