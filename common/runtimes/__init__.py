"""Managed runtimes in a process, read from their data structures; the layouts are derived from
their code."""
