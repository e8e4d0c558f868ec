"""Types of blocks, from debug information and the reference graph: which struct, class or array a
block is, how that is known, and by which path."""
