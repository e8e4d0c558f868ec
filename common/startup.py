"""How a process of the command line begins: what it inherited, and where Ctrl-C goes."""

from __future__ import annotations

import resource
import signal
import sys

ENOUGH_FILES = 1024  # open files: a lower limit is raised to this one


def restore_process() -> None:
    """Undo what the parent process may have set: blocked signals, for which GDB waits forever;
    SIGCHLD ignored, which hides how children ended; a low limit of open files, if the hard limit
    allows more. Ignored SIGINT, SIGTERM and SIGHUP stay ignored: nohup sets them on purpose."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(ENOUGH_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def press_again(unraisable: sys.UnraisableHookArgs) -> None:
    """Press Ctrl-C again where Python dropped it, as in callbacks of weak references, which run
    during imports, too: findleaks would go on, after a traceback."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    import _thread
    import threading

    again = threading.Timer(0.01, _thread.interrupt_main)  # not in this hook
    again.daemon = True
    again.start()
