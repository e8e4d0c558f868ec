"""Managed runtimes in a process, read from their own structures, laid out as their code shows."""
