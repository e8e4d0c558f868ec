"""Stubs: machine code that `count` and `track` map into a process, and the Python code that manages
it."""
