"""Data of the C library and its loader about threads and files, with any malloc."""
