"""Leaks Python objects in threads that have ended and in threads that wait, prints how many, then "ready".

Each thread makes COUNT objects and leaks every second one, by an additional reference. The others go into a list that the threads share.
"""

import gc
import signal
import sys
import threading

from python_increment import increment

COUNT, ENDED, WAITING = int(sys.argv[1]), 4, 3
shared = []
lock = threading.Lock()
done = threading.Semaphore(0)


class Session:
    def __init__(self):
        self.token = "token" * 6
        self.numbers = [1, 2, 3]


def work():
    for number in range(COUNT):
        made = Session()
        if number % 2:
            increment(made)
        with lock:
            shared.append(Session())
            del shared[:-100]
    done.release()


def work_and_wait():
    work()
    threading.Event().wait()


ended = [threading.Thread(target=work) for _ in range(ENDED)]
for thread in ended:
    thread.start()
for thread in ended:
    thread.join()
for _ in range(WAITING):
    threading.Thread(target=work_and_wait, daemon=True).start()
for _ in range(ENDED + WAITING):
    done.acquire()
gc.collect()
print((ENDED + WAITING) * (COUNT // 2))
print("ready", flush=True)
while True:
    signal.pause()
