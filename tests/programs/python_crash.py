"""Reads at an address that is not mapped, in nested functions, while three threads wait."""

import ctypes
import threading
import time

waiting = []


class Reader:
    def read_header(self, address):
        return ctypes.string_at(
            address,
            4,
        )


def waits_for_work(lock):
    waiting.append(lock)
    lock.acquire()


def load(names):
    return [Reader().read_header(16) for _ in names]


lock = threading.Lock()
lock.acquire()
for _ in range(3):
    threading.Thread(target=waits_for_work, args=(lock,), daemon=True).start()
while len(waiting) < 3:
    time.sleep(0.01)
load("ab")
