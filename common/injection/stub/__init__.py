"""Stubs: machine code that `count` and `track` map into a process, and the code that manages it."""
