"""The rule server: a thread that polls the shared table, and answers the threads that wait in the
stub.

They request an unwind rule, the end of a stack, or whether an address is an isolate. An answer also
contains the rules of all outer frames on the stack, so that a new stack makes a thread wait only
once."""

from __future__ import annotations

import mmap
import struct
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Optional

from findleaks.injection.own_memory import Read
from findleaks.injection.remote_syscall import read_mappings
from findleaks.injection.stub.table import (
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
    SWITCH,
    Request,
    answer,
)
from findleaks.injection.stub.unwind_rules import Step, follow, step
from findleaks.target.base import Region, Target
from findleaks.unwind.code_tables import CodeTable
from findleaks.unwind.frames import Unwinder

BUSY_SECONDS, IDLE_SECONDS = 0.0002, 0.002  # seconds between polls: soon after a request, and later
REOPEN_SECONDS = 0.2  # seconds between readings of mapped files, while addresses are in none
# Values of the word ORPHANED: no answer in time, or no server; the table of rules is full
_NO_ANSWER, _TABLE_FULL = 1, 2


class Rules:
    """The unwind rules of one process, by key. Hold `lock`, because only one thread may use them at
    a time."""

    def __init__(
        self,
        opened: Callable[[], Target],
        pid: int,
        read: Read,
        isolate: Callable[[int], bool],
        tables: Callable[[Target], Sequence[CodeTable]] = lambda target: (),
    ) -> None:
        """`tables`: a function that returns descriptions of code without call frame information."""
        self.lock = threading.Lock()
        self.steps: dict[int, Step] = {}
        self._open, self._pid, self._read, self._isolate = opened, pid, read, isolate
        self._regions: list[Region] = []
        self._starts: list[int] = []
        self._reopened_at = time.monotonic()
        self._find_tables = tables
        self.target = opened()
        self.unwinder = Unwinder(self.target, self._find_tables(self.target))

    def close(self) -> None:
        self.target.close()

    def step(self, key: int) -> Step:
        """Return the rule for a code address, which is given by its key."""
        known = self.steps.get(key)
        if known is None:
            if not self.unwinder.executable(key & ADDRESS) and time.monotonic() > self._reopened_at + REOPEN_SECONDS:
                self.reopen()  # code may have been mapped since
            known = self.steps[key] = step(self.unwinder, key)
        return known

    def reopen(self) -> None:
        """Read the mappings again."""
        before, self.target = self.target, self._open()
        self.unwinder = Unwinder(self.target, self._find_tables(self.target))
        before.close()
        self._reopened_at = time.monotonic()

    def stack(self, sp: int) -> Optional[Region]:
        """Return the mapping that contains a stack pointer; None if there is none."""
        found = self._region(sp)
        if found is None:
            self._regions = read_mappings(self._pid)
            self._starts = [region.start for region in self._regions]
            found = self._region(sp)
        return found if found is not None and found.readable and found.writable else None

    def _region(self, address: int) -> Optional[Region]:
        at = bisect_right(self._starts, address) - 1
        return self._regions[at] if at >= 0 and address in self._regions[at] else None

    def forget(self) -> None:
        """Drop the cached mappings, which may have changed."""
        self._regions, self._starts = [], []

    def asked(self, request: Request) -> list[tuple[int, int]]:
        """Return the (key, value) pairs of rules that answer a request; [] if there are none."""
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
        """Return the rules of this code address and of all of its callers."""
        made: dict[int, int] = {}
        region = self.stack(sp)
        low, high = (sp, region.end) if region is not None else (sp, sp)
        for _ in range(MOST):
            value = made[key] = self.step(key).value
            caller = follow(value, key, sp, fp, low, high, self._word)
            if caller is None:
                break
            if value & 0xFF == SWITCH:
                region = self.stack(fp)
                if region is None:
                    break
                low, high = fp, region.end
                made[STACK | fp >> 12] = high
            key, sp, fp = caller
            # The stack changes from that of a signal handler to the interrupted one
            if not low <= sp < high:
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
    """Answers requests until `finish` is called, or until the table of `capacity` rules is nearly
    full.
    `notify` is called once: after `limit` counted calls (0: never), or when `ended` returns True.
    `ended` is called at each poll."""

    def __init__(
        self, shared: mmap.mmap, rules: Rules, capacity: int, limit: int, notify: Callable[[], None], ended: Callable[[], bool]
    ) -> None:
        super().__init__(daemon=True)
        self.asked = 0
        self.error: Optional[BaseException] = None
        self._shared, self._rules, self._limit, self._notify, self._ended = shared, rules, limit, notify, ended
        self._given: set[int] = set()
        self._most = capacity * 3 // 4
        self._over = threading.Event()

    def run(self) -> None:
        try:
            notified, pause = False, BUSY_SECONDS
            while not self._over.is_set():
                served = self._serve()
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

    def _events(self) -> int:
        return int.from_bytes(self._shared[EVENTS - SHARED : EVENTS - SHARED + 8], "little")

    def _serve(self) -> bool:
        shared, served = self._shared, False
        if shared[ORPHANED - SHARED] == _NO_ANSWER:
            # A thread stopped waiting, because the machine was too busy
            shared[ORPHANED - SHARED] = 0
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
                    # Without this, rules that do not fit would be requested again and again.
                    shared[ORPHANED - SHARED] = _TABLE_FULL
                shared[slot + ANSWERS : slot + ANSWERS + len(data)] = data
                shared[state] = ANSWERED
                self.asked += 1
                served = True
        return served
