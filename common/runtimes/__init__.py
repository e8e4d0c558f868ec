"""Managed runtimes in a process, read from their own structures, whose layout their code shows."""
