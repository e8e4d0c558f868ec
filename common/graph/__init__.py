"""Blocks, the pointer graph among them, and what it says: reachable, possible, definite,
indirect."""
