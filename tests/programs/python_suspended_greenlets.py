"""Suspends greenlets in several functions. Prints the frames of each suspended greenlet, as gr_frame returns them, then waits."""

import json
import signal
import sys

from greenlet import getcurrent, greenlet


def pause():
    return getcurrent().parent.switch()


def read(number):
    scratch = [bytearray(600) for _ in range(8)]
    pause()
    return scratch, number


def sort(number):
    return sorted([number], key=read)  # a function of C between two functions of Python


def handle(number):
    request = [bytearray(1500) for _ in range(4)]
    return sort(number), request


def generate(number):
    yield number
    pause()


def iterate(number):
    kept = str(number) * 100
    return [kept for _ in generate(number)]


class Session:
    def __init__(self, number):
        exec("pause()")
        self.number = number


def recurse(number):
    return recurse(number - 1) if number else pause()


def work():
    """Suspend greenlets, in a greenlet that is not the main one."""
    for function, numbers in ((handle, range(1100)), (iterate, range(30)), (Session, range(20)), (recurse, range(0, 5001, 1000))):
        for number in numbers:
            one = greenlet(function)
            one.switch(number)
            waiting.append(one)
    report()


def report():
    chains = []
    for one in [*waiting, getcurrent().parent]:
        frame, chain = one.gr_frame, []
        while frame:
            chain.append([frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name])
            frame = frame.f_back
        chains.append(chain)
    print(json.dumps(chains), flush=True)
    print("ready", flush=True)
    while True:
        signal.pause()


sys.setrecursionlimit(8000)
waiting = []
ended, new = greenlet(len), greenlet(handle)
ended.switch("")
running = greenlet(work)
running.switch()
sys.exit("the program continues")
