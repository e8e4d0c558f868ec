"""Records the blocks that a running process allocates, with their stacks."""
