"""What the C library and its loader keep of threads and loaded files, for any malloc."""
