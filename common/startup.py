"""Start a command-line process: handle inherited settings and the delivery of Ctrl-C."""

from __future__ import annotations

import resource
import signal
import sys

ENOUGH_FILES = 1024  # number of open files to which a lower limit is raised


def restore_process() -> None:
    """Undo settings that the parent process may have made.
    These are blocked signals, for which GDB would wait forever; an ignored SIGCHLD, which hides how
    children ended; and a low limit of open files, if the hard limit allows more. If SIGINT, SIGTERM
    and SIGHUP are ignored, they stay ignored, because nohup sets them on purpose."""
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    if signal.getsignal(signal.SIGCHLD) is signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(ENOUGH_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def repeat_interrupt(unraisable: sys.UnraisableHookArgs) -> None:
    """Repeat a Ctrl-C that Python has dropped.
    Python drops it in callbacks of weak references, which also run during imports. Without this
    function, findleaks would print a traceback and continue."""
    if not issubclass(unraisable.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(unraisable)
        return
    import _thread
    import threading

    # A timer is used, because the exception cannot be raised in this hook.
    again = threading.Timer(0.01, _thread.interrupt_main)
    again.daemon = True
    again.start()
