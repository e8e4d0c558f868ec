"""Unused slots of deques, sets, generators and frames, and caches of code and types, are not references. Objects that only these refer to
leak."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import debuggers
import pytest
import truth
from other_pythons import PYTHONS
from variants import mark_matrix_except

import cores

COUNT = 200
BUFFERS = 40
LEAST = 0.8
"""Minimum share of the leaked objects of each class that must be definitely lost. Stale words elsewhere may refer to a few."""

SHARED_SPARE = {version: {"__main__.DequeEnd", "__main__.DequeStart", "__main__.DequeEmpty"} for version in ("3.9", "3.10")}
"""Up to Python 3.10, all deques share a cache of unused blocks, which findleaks does not recognise."""

VERSIONS = mark_matrix_except([version for version in PYTHONS if version != "3.13t"], "3.11")


def count_leaked(version: str, program: str, count: int, tmp_path: Path) -> tuple[dict[str, int], Counter[str]]:
    """Run a program, and return the leaked objects by class: those that it prints, and those that are definitely lost in its core."""
    python = PYTHONS[version]()
    with cores.Running(python.command(str(truth.PROGRAMS / program), str(count)), tmp_path, python.environment()) as one:
        truly = {name: int(number) for name, number in (line.split() for line in one.output.splitlines()[:-1])}
        found = json.loads(debuggers.findleaks("find", "--json", str(one.gcore())))
    definite = Counter[str]()  # objects of one class may be in several groups
    for group in found["groups"]:
        if group["kind"] == "definite":
            definite[group["type"]] += group["blocks"]
    return truly, definite


@pytest.mark.parametrize("version", VERSIONS)
def test_unused_slots_are_no_references(version: str, tmp_path: Path) -> None:
    truly, definite = count_leaked(version, "python_unused_slots.py", COUNT, tmp_path)
    assert len(truly) == 30 and min(truly.values()) >= COUNT // 2
    for name, count in truly.items():
        if name not in SHARED_SPARE.get(version, ()):
            assert LEAST * count <= definite[name] <= count, name
    assert set(definite) <= set(truly)


@pytest.mark.parametrize("version", VERSIONS)
def test_unused_words_of_buffers_are_no_references(version: str, tmp_path: Path) -> None:
    """The program writes the addresses of leaked objects to unused words of buffers."""
    truly, definite = count_leaked(version, "python_unused_buffers.py", BUFFERS, tmp_path)
    assert len(truly) >= 12
    for name, count in truly.items():
        assert LEAST * count <= definite[name] <= count, name
    assert set(definite) <= set(truly)


HELD = """
import asyncio, collections, ctypes, datetime, decimal, gc, itertools, os, re, signal, sys, time, types
from xml.etree import ElementTree
gc.collect()
gc.disable()
class Session: pass
def new(): return Session()
def many(count): return [Session() for _ in range(count)]
kept = []
for size in (1, 20, 63, 64, 65, 128, 500):
    ends = collections.deque(many(size))
    for _ in range(size // 3):
        ends.popleft(); ends.pop(); ends.appendleft(new()); ends.append(new()); ends.rotate(7)
    kept.append(ends)
kept += [set(many(size)) for size in range(0, 40)]
kept += [frozenset(many(size)) for size in range(0, 40)]
class Own(set): pass
kept += [Own(many(size)) for size in (0, 3, 4, 5, 50)]
for each in kept[10:40]:
    while len(each) > 3: each.pop()
    each.add(new())
def generate(count):
    first, second = new(), many(count)
    for third in many(3):
        yield take(new(), (yield), [new() for _ in range(2)])
    yield third
def take(*all): return all
for count in range(60):
    one = generate(count); next(one); one.send(new()); kept.append(one)
    kept.append(generate(new()))
def deep(level):
    mine = new()
    yield from deep(level - 1) if level else generate(3)
    yield mine
kept += [deep(level) for level in range(8)]
for one in kept[-8:]: next(one)
many_names = "def wide():\\n" + "".join(f" v{n} = new()\\n" for n in range(90)) + " yield v1, new(), (yield)\\n yield v2\\n"
exec(many_names)
for _ in range(9):
    one = wide(); next(one); kept.append(one)
async def wait(future, held):
    other = new()
    await future
    return held, other
loop = asyncio.new_event_loop()
async def start():
    kept.extend(loop.create_task(wait(loop.create_future(), new())) for _ in range(20))
    await asyncio.sleep(0)
loop.run_until_complete(start())
class Number(int): pass
class Slotted(int): __slots__ = ()
class Plain: pass
class More(Plain): __slots__ = ("own",)
for kind in (int, str, float, bytes, object, Slotted, More):  # values of dictionaries that look like objects of these types
    for one in (Number(1), Plain(), More()):
        one.kind, one.session, one.others = kind, new(), many(2)
        kept += [one, vars(one).copy()]
    taken = More()
    taken.own, taken.kind, taken.session = new(), kind, new()
    kept.append(vars(taken))
kept += [itertools.chain(many(3), many(4)) for _ in range(9)]
kept += [iter(many(5)) for _ in range(9)]
kept += [os.stat("/"), *map(time.localtime, range(1_000_000_000, 1_000_000_050))]  # with hidden fields
for count in (0, 1, 56, 57, 58, 200):
    first, second = itertools.tee([new() for _ in range(count)])
    for _ in range(count * 3 // 4): next(first)
    kept.append((first, second))
class Digits(int): pass
for number in (0, 1, -1, 2**29, 2**31, -2**31, 2**100, -2**130):
    one = Digits(number); one.session = new(); kept.append(one)
def pause():
    inner = new()
    yield
for _ in range(9):
    one = pause(); next(one); kept.append(one.gi_frame); del one
class Text(str): pass
kept += [re.compile(Text(f"a{number}")) for number in range(9)]
for number in range(9):
    one = Text(f"text {number}"); one.session = new(); kept.append(one)
    one = ElementTree.Element("a"); one.extend([ElementTree.Element("b") for _ in range(number)]); kept.append(one)
    for each in one: each.text = Text(f"text {number}"); each.text.session = new()
    kept.append(types.SimpleNamespace(session=new(), others=many(number)))
for base in (str, decimal.Decimal, datetime.datetime, types.SimpleNamespace, ElementTree.Element):  # with a word directly after the base
    for slots in (("own",), ("own", "more"), None):
        of = {decimal.Decimal: (1,), datetime.datetime: (2020, 1, 1), types.SimpleNamespace: ()}.get(base, ("text",))
        one = type("Derived", (base,), {"__slots__": slots} if slots else {})(*of)
        one.own = new()
        if slots != ("own",): one.more = many(3)
        kept.append(one)
if sys.version_info < (3, 12):  # an ASCII string with a copy in blocks of malloc
    api = ctypes.pythonapi.PyUnicode_AsUnicode
    api.argtypes, api.restype = [ctypes.py_object], ctypes.c_void_p
    kept += [letter * 500 for letter in "ab"]
    for one in kept[-2:]: api(one)
class Zone(datetime.tzinfo):
    def utcoffset(self, moment): return datetime.timedelta(0)
class Moment(datetime.datetime): pass
for number in range(9):
    zone = Zone(); zone.session = new()
    one = datetime.datetime(2020, 1, 1, tzinfo=zone)
    other = Moment(2020, 1, 1); other.session = new()
    kept += [one, other]
    del one, other, zone
def recurse(level):
    mine, more = new(), {new()}
    if level: recurse(level - 1)
    else: print("ready", flush=True); signal.pause()
    return mine, more
recurse(40)
"""
"""Objects to which only deques, sets, generators, coroutines and frames refer."""


@pytest.mark.parametrize("version", VERSIONS)
def test_used_slots_are_references(version: str, tmp_path: Path) -> None:
    python = PYTHONS[version]()
    with cores.Running(python.command("-c", HELD), tmp_path, python.environment()) as one:
        core = str(one.gcore())
    assert json.loads(debuggers.findleaks("find", "--json", core))["groups"] == []
    lines = map(json.loads, debuggers.findleaks("blocks", "--json", "--type", "__main__.Session", core).splitlines())
    assert sum(row["kind"] == "reachable" for row in lines if "address" in row) > 5000
