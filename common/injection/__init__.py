"""Let a thread of another process make system calls, and clone processes in this way."""
