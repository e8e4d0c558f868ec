"""Objects of many types. Prints for each one its address, its type, the addresses of the objects that it refers to, as the collector knows
them, and the names of some of these references. Then it waits.

With an argument it makes that number of further objects."""

import collections
import functools
import gc
import json
import signal
import sys

try:
    import array
    import ctypes
except ImportError:  # of an interpreter without modules in separate files
    ctypes = None


class Plain:
    def __init__(self, name):
        self.name, self.items = name + "!", [name * 2, object()]


class Slots:
    __slots__ = ("left", "right")


class Derived(Slots):
    __slots__ = ("middle",)


class WithDict(dict):
    pass


class WithMany:
    def __init__(self):
        for number in range(60):
            setattr(self, f"field{number}", object())


def outer():
    kept = [object()]
    default = object()

    def inner(value=default):
        return kept, value

    return inner


def generate():
    local = object()
    yield 1
    print(local)


class Node:
    def __init__(self, after):
        self.after, self.own = after, object()


plain, slots, derived = Plain("plain"), Slots(), Derived()
slots.left, slots.right = object(), [object()]
derived.left, derived.right, derived.middle = object(), object(), (object(), object())
other = WithDict(one=object())
other.attribute = object()
table = {"first key": object(), 5: object(), ("a", 1): object(), "gone": object()}
del table["gone"]
keyed = {f"key {number}": object() for number in range(300)}
exec_dict = vars(Plain("vars"))
chain = None
for _ in range(50):
    chain = Node(chain)
running = generate()
next(running)
numbers = [object() for _ in range(2000)]
several = {
    "plain": plain,
    "slots": slots,
    "derived": derived,
    "other": other,
    "table": table,
    "keyed": keyed,
    "exec_dict": exec_dict,
    "many": WithMany(),
    "chain": chain,
    "numbers": numbers,
    "tuple": (object(), plain, 5, None),
    "set": {object(), "text", plain},
    "frozen": frozenset(object() for _ in range(40)),
    "deque": collections.deque([object() for _ in range(200)]),
    "ordered": collections.OrderedDict(a=object(), b=object()),
    "partial": functools.partial(outer, plain),
    "function": outer(),
    "closure": outer().__closure__,
    "cell": outer().__closure__[0],
    "method": [].append,
    "bound": plain.__init__,
    "running": running,
}
several["chained"] = several["bound"].__self__.items
several["nodes"] = several["chain"].after
named = {
    "plain": {".name": plain.name, ".items": plain.items},
    "slots": {".left": slots.left, ".right": slots.right},
    "derived": {".left": derived.left, ".right": derived.right, ".middle": derived.middle},
    "table": {'["first key"]': table["first key"], "[value]": table[5]},
    "keyed": {f'["key {number}"]': keyed[f"key {number}"] for number in (0, 7, 299)},
    "exec_dict": {'["name"]': exec_dict["name"]},
    "chain": {".after": chain.after, ".own": chain.own},
    "numbers": {f"[{number}]": numbers[number] for number in (0, 1999)},
    "tuple": {"[0]": several["tuple"][0], "[1]": plain},
}
if sys.version_info < (3, 11):  # Attributes are in the dictionaries of the objects.
    del named["plain"], named["chain"]
if ctypes:
    second = ctypes.c_size_t.from_address(ctypes.c_size_t.from_address(id(several["deque"]) + 24).value + 65 * 8).value
    stray = array.array("Q", [second + 100])  # a number that is an address in the second block of the deque
more = [Plain(str(number)) for number in range(int(sys.argv[1]) if len(sys.argv) > 1 else 0)]
leaked = []
found = []
gc.collect()
gc.disable()
for name, value in several.items():
    referents = sorted({id(one) for one in gc.get_referents(value)})
    names = {text: id(one) for text, one in named.get(name, {}).items()}
    kind = type(value)
    full = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    found.append({"name": name, "address": id(value), "type": full, "referents": referents, "names": names})
print(json.dumps(found), flush=True)
print("ready", flush=True)
while True:
    signal.pause()
