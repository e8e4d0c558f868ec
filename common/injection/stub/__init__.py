"""Machine code that `count` and `track` put into a process, and what manages it."""
