"""Counts a function's calls in a running process by stack, or only those outside a scope.
Independent of the debugger: the front ends set breakpoints and report each stop."""
