"""Two global variables, or two attributes of an object, refer to the same sessions. Arguments: `globals` or `attributes`, and a number."""

import sys
import time


class Session:
    def __init__(self, number):
        self.number = number
        self.data = "x" * 500 + str(number)


class Registry:
    def __init__(self):
        self.by_id = {}
        self.recent = []


by_id, recent = {}, []
registry = Registry()


def add(index, sessions, number):
    session = Session(number)
    index[number] = session
    sessions.append(session)


for number in range(int(sys.argv[2])):
    if sys.argv[1] == "globals":
        add(by_id, recent, number)
    else:
        add(registry.by_id, registry.recent, number)
print("ready", flush=True)
time.sleep(3600)
