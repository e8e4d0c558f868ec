"""Answering the threads that wait in the stub: what rule a place has, where a stack ends, whether an isolate is one.

A thread of our own looks at the requests in the shared table all the while. With an answer come the rules of all that is farther out on
the stack of the thread that asked, so that it waits once for a new stack at most.
"""

from __future__ import annotations

import mmap
import struct
import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from typing import Optional

from findleaks.counting.patcher import Read
from findleaks.counting.remote_syscall import mapped
from findleaks.counting.table import (
    ADDRESS,
    ANSWERED,
    ANSWERS,
    ASKED,
    EVENTS,
    EXACT,
    ISOLATE,
    MOST,
    ORPHANED,
    REQUESTS,
    SHARED,
    SLOT_STEP,
    SLOTS,
    STACK,
    STATE_STEP,
    STATES,
    Request,
    answer,
)
from findleaks.counting.unwind_rules import Step, follow, step
from findleaks.target.base import Region, Target
from findleaks.unwind.frames import Unwinder

IDLE, BUSY = 0.001, 0.0002
"""Seconds between two looks: commonly, and after a request."""
REOPENED = 0.2
"""Seconds between two looks at what files are mapped, where a place is none of those known."""
_NOBODY, _NO_ROOM = 1, 2


class Rules:
    """What is known of places. Not to be used by two threads at a time: hold `lock`."""

    def __init__(self, opened: Callable[[], Target], pid: int, read: Read, isolate: Callable[[int], bool]) -> None:
        self.lock = threading.Lock()
        self.steps: dict[int, Step] = {}
        self._open, self._pid, self._read, self._isolate = opened, pid, read, isolate
        self._regions: list[Region] = []
        self._starts: list[int] = []
        self._reopened = time.monotonic()
        self.target = opened()
        self.unwinder = Unwinder(self.target)

    def close(self) -> None:
        self.target.close()

    def step(self, key: int) -> Step:
        """The rule of a place."""
        known = self.steps.get(key)
        if known is None:
            if not self.unwinder.executable(key & ADDRESS) and time.monotonic() > self._reopened + REOPENED:
                self.reopen()  # code may have been mapped since
            known = self.steps[key] = step(self.unwinder, key)
        return known

    def reopen(self) -> None:
        """Look anew at what is mapped."""
        before, self.target = self.target, self._open()
        self.unwinder = Unwinder(self.target)
        before.close()
        self._reopened = time.monotonic()

    def stack(self, sp: int) -> Optional[Region]:
        """The mapping that a stack pointer is in."""
        found = self._region(sp)
        if found is None:
            self._regions = mapped(self._pid)
            self._starts = [region.start for region in self._regions]
            found = self._region(sp)
        return found if found is not None and found.readable and found.writable else None

    def _region(self, address: int) -> Optional[Region]:
        at = bisect_right(self._starts, address) - 1
        return self._regions[at] if at >= 0 and address in self._regions[at] else None

    def forget(self) -> None:
        """Mappings may be others by now."""
        self._regions, self._starts = [], []

    def asked(self, request: Request) -> list[tuple[int, int]]:
        """The pairs for the table of rules that answer a request; [] where there is no answer."""
        key = request.key
        if key & EXACT or not key & (STACK | ISOLATE):
            return self._along(key, request.sp, request.fp)
        if key & ISOLATE:
            return [(key, 1 if self._isolate(key & ADDRESS) else 2)]
        self.forget()
        region = self.stack((key & ~STACK) << 12)
        if region is None:
            return []
        return [(key, region.end), *self._along(request.place, request.sp, request.fp)][:MOST]

    def _along(self, key: int, sp: int, fp: int) -> list[tuple[int, int]]:
        """The rules of this place and of those farther out."""
        made: dict[int, int] = {}
        region = self.stack(sp)
        low, high = (sp, region.end) if region is not None else (sp, sp)
        for _ in range(MOST):
            value = made[key] = self.step(key).value
            caller = follow(value, key, sp, fp, low, high, self._word)
            if caller is None:
                break
            key, sp, fp = caller
            if not low <= sp < high:  # a signal handler's stack led back to another
                region = self.stack(sp)
                if region is None:
                    break
                low, high = sp, region.end
                made[STACK | sp >> 12] = high
        return list(made.items())[:MOST]

    def _word(self, address: int) -> int:
        data = self._read(address, 8)
        if len(data) < 8:
            raise LookupError(address)
        return int.from_bytes(data, "little")


class Service(threading.Thread):
    """Answers until it is told to `finish`, and as long as the table, which has `room` for so many rules, is not full. `ring` is called
    once when `limit` calls were made (0: never), and with every look `look` is, which may say that it is time to end, too."""

    def __init__(self, shared: mmap.mmap, rules: Rules, room: int, limit: int, ring: Callable[[], None], look: Callable[[], bool]) -> None:
        super().__init__(daemon=True)
        self.asked = 0
        self.error: Optional[BaseException] = None
        self._shared, self._rules, self._limit, self._ring, self._look = shared, rules, limit, ring, look
        self._given: set[int] = set()
        self._most = room * 3 // 4
        self._over = threading.Event()

    def run(self) -> None:
        """The thread's work."""
        try:
            rung = False
            while not self._over.is_set():
                served = self._serve()
                if not rung and ((self._limit and self._events() >= self._limit) or self._look()):
                    rung = True
                    self._ring()
                time.sleep(BUSY if served else IDLE)
        except BaseException as error:
            self.error = error
            self._shared[ORPHANED - SHARED] = _NOBODY
            self._ring()

    def finish(self) -> None:
        """Answer no more; threads that wait are let go."""
        self._over.set()
        if self.is_alive():
            self.join()

    def _events(self) -> int:
        return int.from_bytes(self._shared[EVENTS - SHARED : EVENTS - SHARED + 8], "little")

    def _serve(self) -> bool:
        shared, served = self._shared, False
        if shared[ORPHANED - SHARED] == _NOBODY:
            shared[ORPHANED - SHARED] = 0  # a thread gave up, as the machine was too busy for us
        for number in range(REQUESTS):
            state = STATES - SHARED + STATE_STEP * number
            if shared[state] == ASKED:
                slot = SLOTS - SHARED + SLOT_STEP * number
                request = Request(*struct.unpack_from("<4Q", shared, slot))
                with self._rules.lock:
                    pairs = self._rules.asked(request)
                data = answer(pairs)
                self._given.update(key for key, _ in pairs)
                if len(self._given) > self._most:
                    shared[ORPHANED - SHARED] = _NO_ROOM  # it would be asked for again and again
                shared[slot + ANSWERS : slot + ANSWERS + len(data)] = data
                shared[state] = ANSWERED
                self.asked += 1
                served = True
        return served
