"""Threads of CPython that allocate by many ways: blocks too large for its own allocator, and its libraries' own."""

import hashlib
import json
import re
import sqlite3
import threading
import zlib

kept = []


def deep(depth, work):
    return deep(depth - 1, work) if depth else work()


class Compared:
    def __init__(self):
        self.content = bytes(700)

    def __lt__(self, other):
        return bytes(900) < other.content


def work():
    turn = 0
    while True:
        turn += 1
        kept.append(bytes(600))
        json.loads('{"a": [1, 2, 3, "%s"]}' % ("x" * 600))
        deep(turn % 20, lambda: zlib.compress(bytes(2000)))
        sorted((bytearray(800 + number) for number in range(5)), key=lambda one: bytes(1000))
        re.compile(f"a{{{turn % 500}}}(b|c)*").match("a" * 1000)
        hashlib.sha256(bytes(3000)).hexdigest()
        max(Compared(), Compared())
        if turn % 50 == 0:
            base = sqlite3.connect(":memory:")
            base.execute("create table rows(value)")
            base.close()
        if turn % 100 == 0:
            thread = threading.Thread(target=lambda: bytes(5000))
            thread.start()
            thread.join()
        if len(kept) > 2000:
            kept.clear()


for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
print("ready", flush=True)
work()
