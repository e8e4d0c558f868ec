"""Managed runtimes in a process, read from their own structures; their code shows the layouts."""
