"""Ctrl-C in LLDB: LLDB only records it, so Python code that does not check for it runs to its
end."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Optional

EVERY = 0.05  # Seconds between two checks for the key.


class Interrupts:
    """Raises KeyboardInterrupt in the thread that runs a command, soon after `asked()` becomes
    true.

    LLDB reports Ctrl-C only to the thread that reads its commands. A second thread makes Python
    call `_look` in that thread between two instructions (Py_AddPendingCall), as for a signal. Calls
    into C are not interrupted; those of the C engine are short. Nothing is raised if commands run
    in another thread than the one in which Python was started, as in some editors."""

    def __init__(self, asked: Callable[[], bool]) -> None:
        self._asked = asked
        self._lock = threading.Lock()
        self._thread: Optional[int] = None  # The thread that runs a command.
        self._pending = False
        self._pressed = self._held = False
        # Kept as long as this object, as Python may call it late.
        self._callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._look)

    @contextmanager
    def raise_interrupts(self) -> Iterator[None]:
        """A context in which KeyboardInterrupt is raised."""
        over = threading.Event()
        self._pressed = self._held = False
        self._thread = threading.get_ident()
        watcher = threading.Thread(target=self._watch, args=(over,), name="findleaks-interrupt", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            with self._lock:
                self._thread = None
            over.set()
            watcher.join()

    def hold(self) -> None:
        """From now on, only record the key."""
        with self._lock:
            self._held = True

    def heed(self) -> bool:
        """Raise KeyboardInterrupt from now on. Return whether the key was pressed since the last
        call."""
        with self._lock:
            self._held = False
            pressed, self._pressed = self._pressed, False
        return pressed

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(EVERY):
            with self._lock:
                if self._pressed and not self._held and self._thread is not None:
                    # The exception is raised in this thread: inside `_look`, ctypes would print and
                    # ignore it.
                    thread, error = ctypes.c_ulong(self._thread), ctypes.py_object(KeyboardInterrupt)
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, error)
                    return
            if not self._pending and not self._pressed:
                self._pending = ctypes.pythonapi.Py_AddPendingCall(self._callback, None) == 0

    def _look(self, _: Optional[int]) -> int:
        self._pending = False
        if self._thread == threading.get_ident() and self._asked():
            self._pressed = True
        return 0
