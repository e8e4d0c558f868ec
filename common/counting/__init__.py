"""Counting a function's calls in a process that runs: by their stacks, those outside a scope only. Knows no debugger: the front ends
set breakpoints and tell of each stop."""
