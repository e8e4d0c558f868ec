"""Ctrl-C in LLDB: it only takes note of the key, so that Python code that does not ask runs on to its end."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

EVERY = 0.05
"""Seconds between two looks."""


@contextmanager
def interruptible(asked: Callable[[], bool]) -> Iterator[None]:
    """Inside, KeyboardInterrupt is raised soon after `asked()` becomes true, wherever Python code then is.

    A second thread looks, as a command may be in a long computation that does not. (Calls into C are not broken off; the kernel's
    are short.) PyThreadState_SetAsyncExc is the documented way to raise in another thread.
    """
    me = ctypes.c_ulong(threading.get_ident())
    lock = threading.Lock()
    over = threading.Event()

    def watch() -> None:
        while not over.wait(EVERY):
            if asked():
                with lock:
                    if not over.is_set():
                        ctypes.pythonapi.PyThreadState_SetAsyncExc(me, ctypes.py_object(KeyboardInterrupt))
                return

    watcher = threading.Thread(target=watch, name="findleaks-interrupt", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        with lock:
            over.set()
        watcher.join(1)
