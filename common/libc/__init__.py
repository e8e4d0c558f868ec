"""What the C library and its loader keep of threads and files, whatever malloc is used."""
