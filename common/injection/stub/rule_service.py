"""Poll the shared table, and answer the threads that wait in the stub."""

from __future__ import annotations

import mmap
import struct
import threading
import time
from collections.abc import Callable
from typing import Optional

from findleaks.injection.stub.readable_pages import MOST_UNREADABLE, REFRESH_SECONDS, is_readable_key
from findleaks.injection.stub.rule_server import Rules
from findleaks.injection.stub.table import (
    ANSWERED,
    ANSWERS,
    ASKED,
    DAMAGED,
    EVENTS,
    MANY,
    NUMBERED,
    ORPHANED,
    REQUESTS,
    SHARED,
    SLOT_STEP,
    SLOTS,
    STATE_STEP,
    STATES,
    VALUE,
    Request,
    answer,
    store_value,
)

BUSY_SECONDS, IDLE_SECONDS = 0.0002, 0.002  # seconds between polls: soon after a request, and later
# Values of the word ORPHANED. _NO_ANSWER: no answer in time, or no server. _TABLE_FULL: the table
# of rules is full.
_NO_ANSWER, _TABLE_FULL = 1, 2


class Service(threading.Thread):
    """Answers requests until `finish` is called, or until the table of `capacity` rules is nearly
    full. Calls `ended` at each poll. Calls `notify` once: after `limit` counted calls (0: no
    limit), or when `ended` returns True."""

    def __init__(
        self, shared: mmap.mmap, rules: Rules, capacity: int, limit: int, notify: Callable[[], None], ended: Callable[[], bool]
    ) -> None:
        super().__init__(daemon=True)
        self.asked = 0
        self.error: Optional[BaseException] = None
        self._shared, self._rules, self._limit, self._notify, self._ended = shared, rules, limit, notify, ended
        self._given: set[int] = set()
        self._capacity, self._most = capacity, capacity * 3 // 4
        self._functions = 0
        self._over = threading.Event()
        self._refreshed_at = 0.0

    def run(self) -> None:
        try:
            notified, pause = False, BUSY_SECONDS
            while not self._over.is_set():
                served = self._serve()
                self._refresh_pages()
                if not notified and ((self._limit and self._events() >= self._limit) or self._ended()):
                    notified = True
                    self._notify()
                pause = BUSY_SECONDS if served else min(1.1 * pause, IDLE_SECONDS)
                time.sleep(pause)
        except BaseException as error:
            self.error = error
            self._shared[ORPHANED - SHARED] = _NO_ANSWER
            self._notify()

    def finish(self) -> None:
        """Stop answering, and wait until the thread has ended."""
        self._over.set()
        if self.is_alive():
            self.join()

    def _refresh_pages(self) -> None:
        """Update the bitmaps of readable pages if the process has mapped or unmapped memory."""
        if time.monotonic() < self._refreshed_at + REFRESH_SECONDS:
            return
        self._refreshed_at = time.monotonic()
        with self._rules.lock:
            changed = self._rules.pages.refresh()
        for key, bitmap in changed.items():
            store_value(self._shared, self._capacity, key, bitmap)

    def _count_function(self) -> None:
        """Count an answer about a function of a chain. A program may create new functions all the
        time. Such answers get at most half of the entries that the server fills, because the rules
        of code need entries, too."""
        self._functions += 1
        if self._functions > self._most // 2:
            self._rules.has_many_functions = True
            self._shared[MANY - SHARED] = 1

    def _events(self) -> int:
        return int.from_bytes(self._shared[EVENTS - SHARED : EVENTS - SHARED + 8], "little")

    def _serve(self) -> bool:
        shared, served = self._shared, False
        if shared[ORPHANED - SHARED] == _NO_ANSWER:
            # A thread stopped waiting because the machine was too busy. Let threads wait again.
            shared[ORPHANED - SHARED] = 0
        for number in range(REQUESTS):
            state = STATES - SHARED + STATE_STEP * number
            if shared[state] == ASKED:
                slot = SLOTS - SHARED + SLOT_STEP * number
                request = Request(*struct.unpack_from("<4Q", shared, slot))
                with self._rules.lock:
                    pairs = self._rules.answer(request)
                if is_readable_key(request.key):
                    # The table may already contain the key, with a bitmap of earlier mappings.
                    store_value(shared, self._capacity, *pairs[0])
                    if self._rules.pages.unreadable >= MOST_UNREADABLE:
                        shared[DAMAGED - SHARED] = 1
                data = answer(pairs)
                self._given.update(key for key, _ in pairs)
                if request.key & VALUE and request.key & NUMBERED:
                    self._count_function()
                if len(self._given) > self._most:
                    # Otherwise stubs would request rules that do not fit again and again.
                    shared[ORPHANED - SHARED] = _TABLE_FULL
                shared[slot + ANSWERS : slot + ANSWERS + len(data)] = data
                shared[state] = ANSWERED
                self.asked += 1
                served = True
        return served
