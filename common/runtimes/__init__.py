"""Read managed runtimes in a process from their data structures. The layouts are derived from their
code."""
