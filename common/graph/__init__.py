"""The graph of references between blocks, and the kinds that follow from it: reachable, possible,
definite, indirect."""
