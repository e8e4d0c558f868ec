"""SQLObject up to 3.10.2 keeps the SQLite connection of each thread that used it, even after the thread has ended.

https://github.com/sqlobject/sqlobject/issues/186, fixed in 3.10.3: it drops connections of ended threads before it makes the next one.
All threads run at the same time, as in a busy server. If a later thread got the identifier of an earlier one, it would replace the entry.
"""

import ctypes
import gc
import json
import sqlite3
import sys
import threading
import time
from pathlib import Path

from sqlobject import SQLObject, StringCol, connectionForURI, sqlhub

sqlhub.processConnection = connectionForURI("sqlite:" + str(Path("database").resolve()))


class Person(SQLObject):
    name = StringCol()


def serve() -> None:
    together.wait()
    Person.select().count()
    together.wait()


Person.createTable()
Person(name="Ada")
times = int(sys.argv[1])
together = threading.Barrier(times)
workers = [threading.Thread(target=serve) for _ in range(times)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
del worker, workers
Person.select().count()
gc.collect()

# SQLite's own count of the bytes that it uses, without the eight bytes before each block that contain its size.
library = ctypes.CDLL("libsqlite3.so.0")
library.sqlite3_memory_used.restype = ctypes.c_int64
kept = [one for one in gc.get_objects() if type(one) is sqlite3.Connection]
print(json.dumps({"objects": len(kept), "one": hex(id(kept[-1])), "bytes": library.sqlite3_memory_used()}))
del kept
print("ready", flush=True)
time.sleep(3600)
