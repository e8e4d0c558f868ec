"""Holds most of its memory in one variable of a module. Prints the addresses of the variable's value, of a string deep
inside it, and of a local variable's list, and the bytes and objects that are reachable only from the variable."""

import os
import signal
import sys


class Session:
    def __init__(self, number):
        self.name = f"session number {number}"
        self.items = [float(number), {"number": str(number) + " of many"}]


def look_up(number):
    return CACHE[number]


def measured():
    """Return the sum of sys.getsizeof, without the collector's headers, of everything that is reachable from the cache."""
    total = sys.getsizeof(CACHE)
    count = 1
    for one in CACHE.values():
        inside = [one, one.name, one.items, one.items[0], one.items[1], one.items[1]["number"]]
        total += sum(map(sys.getsizeof, inside)) + sys.getsizeof(one.__dict__)
        count += len(inside)
    return total, count


CACHE = {number: Session(number) for number in range(int(sys.argv[1]))}
ALIAS = CACHE
small = {"a": 1}


def main():
    mine = [object() for _ in range(1000)]
    deep = id(CACHE[int(sys.argv[1]) // 2].items[1]["number"])
    total, count = measured()
    os.write(1, b"%d %d %d %d %d\nready\n" % (id(CACHE), deep, id(mine), total, count))
    while True:
        signal.pause()


main()
