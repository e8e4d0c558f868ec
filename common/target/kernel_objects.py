"""Names of kernel objects whose pointers cannot be read, or not all of them."""

URING = "anon_inode:[io_uring]"  # of an io_uring's descriptor, and of its mappings
AIO_RING = "/[aio]"  # how the name of the mapping of a context of io_setup(2) begins
URING_NAME, AIO_CONTEXT = "io_uring descriptor", "io_setup context"  # in `KernelState.hidden`
