"""Blocks and the pointer graph among them: reachable, possible, definite, indirect."""
