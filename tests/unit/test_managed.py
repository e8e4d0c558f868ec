"""Objects by type and by package: groups of types, and the columns of holders."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Optional, cast

import pytest

from findleaks.audit import managed as audit
from findleaks.engine.dominators import IGNORED, NO_ROOT
from findleaks.engine.terms import Totals
from findleaks.runtimes.base import Holders, Runtime, Type
from findleaks.runtimes.directory import heap_owners


class Fake(Runtime):
    name, version, where = "fake", "1", ""

    def __init__(self) -> None:
        self.problems = []

    def types(self) -> Sequence[Type]:
        return [Type("PG::Result", 3, 120, {"tracked": 2}), Type("PG::Tuple", 2, 80, {"tracked": 1, "weak": 1}), Type("str", 9, 500)]

    def reported_bytes(self, name: str) -> Optional[int]:
        return {"PG::Result": 1000, "PG::Tuple": 24}.get(name)


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("sqlite3.Connection", "sqlite3"),
        ("babel.dates.DateTimePattern", "babel"),
        ("PG::Result", "PG"),
        ("node::(anonymous namespace)::ZlibStream", "node"),
        ("Thread [VM/thread]", "Thread [VM/thread]"),
        ("str", "str"),
        ("", ""),
    ],
)
def test_package_of_a_type(name: str, package: str) -> None:
    assert audit.package_of_type(name) == package


def test_types_of_a_package_are_summed() -> None:
    session = cast("Any", SimpleNamespace(report_progress=lambda *_: None))
    (found,) = audit.list_runtime_holdings(session, [Fake()], native=False, group=audit.package_of_type)
    assert [(row.type, row.reported, row.native) for row in found.types] == [
        (Type("str", 9, 500), None, None),
        (Type("PG", 5, 200, {"tracked": 3, "weak": 1}), 1024, None),
    ]
    (apart,) = audit.list_runtime_holdings(session, [Fake()], native=False)
    assert [row.type.name for row in apart.types] == ["str", "PG::Result", "PG::Tuple"]
    assert [row.reported for row in apart.types] == [None, 1000, 24]


def test_columns_of_groups_with_owners_separate() -> None:
    names = ["PG::Result", "Zlib::Inflate", "PG::Tuple", "PG::Error", "str"]
    before = Holders(
        array("Q", [16, 32, 48]),
        array("I", [8, 8, 8]),
        array("I", [3, NO_ROOT, 2]),
        names,
        array("I", [0, 4, IGNORED, 1]),
        owning=3,
        owned=[(2, [7]), (4, [8])],
    )
    found = audit._group_holders(before, audit.package_of_type)
    assert found is not None
    # The types of PG that free the memory that they wrap come first, together with Zlib's. PG::Error does not free
    # memory, so it is counted separately until the sums are made.
    assert (found.names, found.owning) == (["PG", "Zlib", "PG", "str"], 2)
    assert found.types == array("I", [2, NO_ROOT, 0])
    assert found.blocks == array("I", [0, 3, IGNORED, 1])
    assert found.owned == [(0, [7]), (3, [8])]
    assert (found.addresses, found.sizes) == (before.addresses, before.sizes)
    assert audit._group_holders(before, str) is before
    assert audit._group_holders(None, audit.package_of_type) is None


@pytest.mark.parametrize(
    ("files", "allocators", "owners"),
    [
        (["node"], {"glibc"}, ["V8"]),
        (["python3.11"], {"glibc"}, ["CPython"]),
        (["python3.11"], {"glibc", "pymalloc"}, []),
        (["app", "libpython3.13.so.1.0", "libruby-3.1.so.3.1", "libjvm.so"], {"glibc"}, ["the JVM", "Ruby", "CPython"]),
        (["app", "libpython3.13.so.1.0", "libruby-3.1.so.3.1"], {"pymalloc", "glibc"}, ["Ruby"]),
        (["app", "libc.so.6"], {"glibc"}, []),
    ],
)
def test_heaps_of_no_allocator(files: list[str], allocators: set[str], owners: list[str]) -> None:
    assert heap_owners(files, allocators) == owners


def test_native_memory_of_garbage() -> None:
    """A little native memory that garbage refers to does not make large live objects garbage."""
    rows = [audit.TypeHoldings(Type("Buffer", 1, 100, {audit.GARBAGE_NATIVE_BYTES: 900}), Totals(9, 1000), None, None)]
    assert audit.RuntimeHoldings(Fake(), rows, Totals(9, 1000)).is_native_garbage
    rows.append(audit.TypeHoldings(Type("byte[]", 5, 5000), Totals(0, 0), None, None))
    assert not audit.RuntimeHoldings(Fake(), rows, Totals(9, 1000)).is_native_garbage
