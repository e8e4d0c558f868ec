"""The engine in Python: the same answers where there is no C library; what tests hold the kernel
to."""
