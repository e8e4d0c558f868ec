"""Record the blocks that a running process allocates, with their call stacks."""
