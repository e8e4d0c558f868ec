"""The engine in Python: the same results without a C library. Tests compare both engines."""
