"""Names of kernel objects whose pointers to user memory cannot be read completely."""

URING = "anon_inode:[io_uring]"  # name of an io_uring's descriptor and mappings
AIO_RING = "/[aio]"  # prefix of the name of the mapping of an io_setup(2) context
URING_NAME, AIO_CONTEXT = "io_uring descriptor", "io_setup context"  # keys of `KernelState.hidden`
TIMERS_UNREAD = "unread list of POSIX timers"  # a key of `KernelState.hidden`: no /proc/PID/timers
