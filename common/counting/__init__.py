"""Count a function's calls in a running process by call stack, or only the calls that are made
outside a scope. This package does not depend on a debugger: the front ends set breakpoints and
report each stop."""
