"""Calls more Python functions than findleaks lists of a thread, between two functions that C calls. Then waits."""

import signal
import sys


def recurse(number):
    return recurse(number - 1) if number else max([0], key=callback)


def callback(_):
    print("ready", flush=True)
    while True:
        signal.pause()


sys.setrecursionlimit(50_000)
max([20_000], key=recurse)
