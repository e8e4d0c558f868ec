"""What the C library and its loader keep of threads and loaded files, whatever malloc the process
uses."""
