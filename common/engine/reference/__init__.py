"""The engine in Python: the same answers without a C library; tests compare both engines."""
