"""Leaks COUNT Python objects of each of several classes, whose last holders were slots that are now unused; prints each class and the
number of its leaked objects, then "ready".

An object has a reference too many, as after a missing Py_DECREF. Nothing refers to it.
"""

import collections
import ctypes
import gc
import heapq
import itertools
import re
import signal
import sys
import types

COUNT = int(sys.argv[1])
increment = ctypes.pythonapi.Py_IncRef
increment.argtypes, increment.restype = [ctypes.py_object], None
kept = []


def classes(*names):
    return [type(name, (), {}) for name in names]


DequeEnd, DequeStart, DequeEmpty, SetTable, Popped, Attribute, Heap = classes(
    "DequeEnd", "DequeStart", "DequeEmpty", "SetTable", "Popped", "Attribute", "Heap"
)
Ended, Suspended, Coroutine, Cleared, Iterator, Detached = classes("Ended", "Suspended", "Coroutine", "Cleared", "Iterator", "Detached")
Emptied, Global, Registered, Seen, Behind, Valued = classes("Emptied", "Global", "Registered", "Seen", "Behind", "Valued")
Coded, Paused, Viewed, Counted, Spelled = classes("Coded", "Paused", "Viewed", "Counted", "Spelled")
Teed, Matched, Running, Accented = classes("Teed", "Matched", "Running", "Accented")


def leaked(kind):
    made = kind()
    increment(made)
    return made


def keep(made):
    kept.append(made)
    return made


def deque_end():
    one = keep(collections.deque(leaked(DequeEnd) for _ in range(COUNT)))
    while len(one) > COUNT // 2:
        one.pop()
    return COUNT - len(one)


def deque_start():
    one = keep(collections.deque(leaked(DequeStart) for _ in range(COUNT)))
    while len(one) > COUNT // 2:
        one.popleft()
    return COUNT - len(one)


def deque_empty():
    for _ in range(COUNT // 20):
        one = keep(collections.deque(leaked(DequeEmpty) for _ in range(20)))
        while one:
            one.popleft()
    return COUNT // 20 * 20


def cached():
    """The interpreter's cache of type attributes refers to the function. Since Python 3.11, bytecode that calls the function refers to it,
    too, at any even offset."""
    for number in range(COUNT):
        holder = keep(type("Holder", (), {"method": lambda self: None}))
        increment(holder.method)
        names = {"one": holder()}
        exec("def call(x=1):\n" + " -x\n" * (number % 4) + " one.method()\n", names)
        call = keep(names["call"])
        for _ in range(100):
            call()
        del holder.method
    return COUNT


def global_variable():
    """Up to Python 3.10, a code object has a cache of the global variables that it uses often."""
    for _ in range(COUNT):
        names = {"one": leaked(Global)}
        exec("def use():\n for _ in range(9):\n  one\n", names)
        use = keep(names["use"])
        for _ in range(1100):
            use()
        del names["one"]
    return COUNT


def emptied():
    for _ in range(COUNT):
        one = keep([])
        one.append(leaked(Emptied))
        one.pop()
    return COUNT


def registered():
    """The keys of a dictionary are the ids of objects. The hash of an id is the object's address. A class has such a dictionary of its
    subclasses."""
    one = keep({})
    for number in range(COUNT):
        made = leaked(Registered)
        one[id(made)] = number
    return COUNT


def seen():
    large = keep(set())
    for number in range(COUNT // 2):
        small = keep({number})
        for one in large, small:
            one.add(id(leaked(Seen)))
    return COUNT // 2 * 2


def subclasses():
    for _ in range(COUNT):
        increment(type("Subclass", (), {}))
    return COUNT


def set_table():
    for _ in range(COUNT // 20):
        one = keep(set())
        for _ in range(20):
            one.add(leaked(SetTable))
        while one:
            one.pop()
    return COUNT // 20 * 20


def popped():
    for number in range(COUNT // 4):
        kind = (dict, collections.OrderedDict)[number % 2]
        one = keep(kind((number, leaked(Popped)) for number in range(4)))
        while one:
            one.popitem()
    return COUNT // 4 * 4


class Plain:
    pass


class Slots:
    __slots__ = "first", "second"


def attribute():
    for number in range(COUNT // 2):
        one = keep((Plain, Slots)[number % 2]())
        one.first, one.second = leaked(Attribute), leaked(Attribute)
        del one.first
        one.second = None
    return COUNT // 2 * 2


def detached():
    """The attributes move to a dictionary of their own, because it gets many more keys."""
    for _ in range(COUNT):
        one = keep(Plain())
        one.first = leaked(Detached)
        one.__dict__.update((f"further{number}", None) for number in range(40))
        del one.first
    return COUNT


class Ten:
    def __init__(self, values):
        for number in range(values):
            setattr(self, f"value{number}", None)


def behind():
    """After the attribute values there is an unused word (Python 3.11 and later). It still contains the address of the object."""
    for _ in range(50):
        Ten(10)
    for _ in range(COUNT):
        made = leaked(Behind)
        earlier = [[made] * words for words in (14, 16, 18, 20, 22, 24)]
        del earlier
        keep(Ten(0))
    return COUNT


class Number(int):
    pass


def of_dictionary():
    """The attributes of a number are in a block of values that belongs to a dictionary. Some words of the block are not written. They still
    contain the address of the object."""
    Number(1).first = None
    for number in range(COUNT):
        one = keep(Number(1000 + number))
        made = leaked(Valued)
        earlier = [[made] * words for words in (6, 34, 36)]
        del earlier
        one.first = None
    return COUNT


def unwritten(kind, new):
    """The interpreter does not write some words of the objects that `new` returns. They still contain the address of the object."""
    for number in range(COUNT):
        made = leaked(kind)
        earlier = [[made] * words for words in range(4, 64)]
        del earlier
        keep(new(number))
    return COUNT


def coded():
    code = coded.__code__
    return unwritten(Coded, lambda number: code.replace(co_firstlineno=number))


def paused():
    def generate(number):
        yield number

    return unwritten(Paused, generate)


def viewed():
    return unwritten(Viewed, lambda number: memoryview(b"viewed"))


def counted():
    """The block of a number is larger than the number with its digits and its dictionary."""
    return unwritten(Counted, lambda number: Number((number, -number)[number % 2] << number % 3 * 30))


class Octets(bytes):
    pass


def spelled():
    return unwritten(Spelled, lambda number: Octets(b"x" * (number % 40)))


def accented():
    """Of the word with the flags of a string, the interpreter writes only the low bytes."""
    return unwritten(Accented, lambda number: chr(0xE9) * (8 + number % 40))


def teed():
    return unwritten(Teed, lambda number: itertools.tee(()))


def matched():
    pattern = re.compile("(x)|(y)")
    return unwritten(Matched, lambda number: pattern.match("x"))


def running():
    """While a generator is suspended, the place for a frame in its frame object is not used (Python 3.11 and later)."""

    def generate():
        yield

    def suspend(number):
        one = generate()
        next(one)
        return one, one.gi_frame

    return unwritten(Running, suspend)


def heap():
    one = keep([])
    for number in range(COUNT):
        heapq.heappush(one, (number, leaked(Heap)))
    while len(one) > COUNT // 2:
        heapq.heappop(one)
    return COUNT - len(one)


def ended():
    def generate():
        held = leaked(Ended)
        more = [held, leaked(Ended)]
        yield len(more)

    for _ in range(COUNT // 2):
        list(keep(generate()))
    return COUNT // 2 * 2


def take(*_):
    pass


def suspended():
    def generate():
        take(1, 2, 3, leaked(Suspended), leaked(Suspended))
        yield

    for _ in range(COUNT // 2):
        next(keep(generate()))
    return COUNT // 2 * 2


def coroutine():
    async def work():
        held = leaked(Coroutine)
        return bool(held)

    for _ in range(COUNT):
        try:
            keep(work()).send(None)
        except StopIteration:
            pass
    return COUNT


def cleared():
    def fail():
        held = leaked(Cleared)
        raise ValueError(bool(held))

    for _ in range(COUNT):
        try:
            fail()
        except ValueError as error:
            frame = error.__traceback__.tb_next.tb_frame
        keep(frame).clear()
    return COUNT


def iterator():
    for _ in range(COUNT):
        list(keep(iter([leaked(Iterator)])))
    return COUNT


KINDS = {
    DequeEnd: deque_end,
    DequeStart: deque_start,
    DequeEmpty: deque_empty,
    Emptied: emptied,
    types.FunctionType: cached,
    Global: global_variable,
    Registered: registered,
    Seen: seen,
    type: subclasses,
    SetTable: set_table,
    Popped: popped,
    Attribute: attribute,
    Behind: behind,
    Valued: of_dictionary,
    Heap: heap,
    Ended: ended,
    Suspended: suspended,
    Coroutine: coroutine,
    Cleared: cleared,
    Iterator: iterator,
    Detached: detached,
    Coded: coded,
    Paused: paused,
    Viewed: viewed,
    Counted: counted,
    Spelled: spelled,
    Teed: teed,
    Matched: matched,
    Running: running,
    Accented: accented,
}

gc.collect()
gc.disable()
for kind, leak in KINDS.items():
    print(kind.__name__ if kind in (type, types.FunctionType) else f"{kind.__module__}.{kind.__name__}", leak())
print("ready", flush=True)
while True:
    signal.pause()
