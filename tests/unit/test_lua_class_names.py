"""Name the classes of Lua's objects, with objects that a fake provides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

from findleaks.runtimes.lua.class_names import ClassNames
from findleaks.runtimes.lua.layout import FUNCTION, TABLE, State
from findleaks.runtimes.lua.objects import Objects

STATE = cast(State, SimpleNamespace(address=1, thread=2))
CLASS, REGISTRY, METATABLES, METHOD = 100, 200, range(1000, 41000, 2), 500


class FakeObjects:
    """Objects that have a metatable each. The metatables have a function as well as an `__index`, which is the same table."""

    def __init__(self, registered: int = 0) -> None:
        """`registered`: the metatable that a C library registered as "Point", after many references of luaL_ref."""
        self.reads: Counter[int] = Counter()
        self.searched = 0
        self.registered = registered

    def entries(self, _: State, table: int) -> Iterator[tuple[object, int, int, int]]:
        self.reads[table] += 1
        if table in METATABLES:
            yield "__index", TABLE, CLASS, 0
            yield "__len", FUNCTION, table + 1, 0
        elif table == CLASS:
            yield "read", FUNCTION, METHOD, 0
        elif table == REGISTRY:
            yield from ((number, TABLE, METATABLES[number], 0) for number in range(1, 10_000))
            yield "Point", TABLE, self.registered, 0

    def is_script(self, _: State, function: int) -> bool:
        return bool(function)

    def prototype(self, _: State, function: int) -> int:
        return function

    def place(self, _: State, prototype: int) -> str:
        return ""

    def upvalues(self, _: State, function: int) -> Iterator[tuple[str, int]]:
        self.searched += 1
        yield ("Reader", METATABLES[0]) if function == METHOD else ("other", 7)

    def reference(self, place: int) -> int:
        return place

    def file_of(self, *_: object) -> str:
        return "cache.lua"

    def modules(self, _: State) -> Iterator[tuple[str, int]]:
        yield from ()

    def registry(self, _: State) -> Iterator[tuple[str, int, int]]:
        yield from [("the registry", REGISTRY, 0)] if self.registered else ()

    def globals(self, _: State) -> Iterator[tuple[str, int, int]]:
        yield from ()

    def local_variables(self, *_: object) -> Iterator[tuple[int, str, int]]:
        yield from ()


def test_many_metatables_share_a_table_of_methods() -> None:
    """The shared table is read once, and the number of functions that are searched is limited."""
    objects = FakeObjects()
    names = ClassNames(cast(Objects, objects))
    found = [names.find(STATE, one) for one in METATABLES]
    assert found[0] == "Reader" and not any(found[1:])
    assert objects.reads[CLASS] == 1 and objects.searched == 1 << 14


def test_names_of_the_registry_behind_many_references() -> None:
    names = ClassNames(cast(Objects, FakeObjects(METATABLES[1])))
    assert [names.find(STATE, one) for one in METATABLES[1:3]] == ["Point", ""]
