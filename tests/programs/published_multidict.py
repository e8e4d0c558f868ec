"""Iterate over MultiDicts. Each time, multidict 4.7.3 creates a view of the keys and never releases it."""

import gc
import sys
import time

from multidict import MultiDict

assert MultiDict.__module__ == "multidict._multidict", "the C extension is under test"


def handle_request(number):
    headers = MultiDict((("Host", "example.org"), ("X-Request-Id", f"request {number}")))
    return list(headers)


for number in range(int(sys.argv[1])):
    handle_request(number)
gc.collect()
print("ready", flush=True)
time.sleep(3600)
