"""Allocation sites from several recorders: their numbers and weights, and the site of each block."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import fake
import pytest

from findleaks.allocators.sites import Site, Sites, SourceFrame, estimate_represented, make_recording
from findleaks.audit.cache_sites import count_class_sites
from findleaks.engine.load import load
from findleaks.engine.terms import State, Totals
from findleaks.target.arch import X86_64

TARGET = fake.FakeTarget({})
SMALL, LARGE = Site((0x10, 0x20), Totals(3, 30)), Site((0x11, 0x20), Totals(2, 500))
SAMPLED = Site((SourceFrame("shop.py", 41, "order"),), Totals(1, 100), None, Totals(40, 4000))


def make_sites() -> Sites:
    first = make_recording(TARGET, "first", [SMALL, LARGE], [(0x3000, 1, 1.0), (0x1000, 0, 1.0), (0x1000, 1, 1.0)])
    return Sites([first, make_recording(TARGET, "second", [SAMPLED], [(0x1000, 0, 40.0), (0x2000, 0, 40.0)], interval=512)])


def test_most_bytes_first() -> None:
    sites = make_sites()
    assert [(one.number, one.site) for one in sites] == [(1, SAMPLED), (2, LARGE), (3, SMALL)]
    assert sites[1].recording.sampled and not sites[2].recording.sampled
    for number in (0, 4):
        with pytest.raises(KeyError):
            sites[number]


def test_of_blocks() -> None:
    """If one recorder has two records of an address, the first record counts. If two recorders have one, that of the
    first recorder counts."""
    sites = make_sites()
    assert [sites.of(address) for address in (0x1000, 0x1001, 0x2000, 0x3000, 0)] == [3, 0, 1, 2, 0]
    assert [sites.site_and_weight(address) for address in (0x2000, 0x3000, 0x4000)] == [(1, 40.0), (2, 1.0), (0, 0.0)]
    assert [one.number for one in sites.list_all(0x1000)] == [3, 1]
    assert [list(sites.blocks(number)) for number in (1, 2, 3)] == [[0x1000, 0x2000], [0x3000], [0x1000]]


def test_samples_represent_others() -> None:
    assert estimate_represented(100, 1) == 1.0 and estimate_represented(0, 512) == 1.0
    assert estimate_represented(1, 1 << 19) == pytest.approx((1 << 19) + 0.5)
    assert estimate_represented(1 << 30, 1 << 10) == pytest.approx(1.0)


def test_nothing_recorded() -> None:
    sites = Sites([])
    assert len(sites) == 0 and sites.of(0x1000) == 0 and sites.list_all(0x1000) == [] and sites.warnings == []


def test_a_block_of_two_recorders_is_counted_once() -> None:
    blocks = load(X86_64).blocks(X86_64, 16)
    blocks.append([0x1000, 0x2000, 0x3000], [48, 48, 48], [State.IN_USE, State.IN_USE, State.FREE])
    blocks.seal()
    allocator = SimpleNamespace(class_of=lambda address: "")
    directory = SimpleNamespace(blocks=blocks, owner=lambda address: SimpleNamespace(allocator=allocator))
    session: Any = SimpleNamespace(directory=directory, sites=make_sites(), report_progress=lambda phase, part: None)
    holding: Any = SimpleNamespace(allocator=allocator, caches=())
    found = count_class_sites(session, [holding])
    assert {one.site: (one.size, one.live, one.estimated) for one in found} == {
        1: (48, Totals(1, 48), Totals(40, 40 * 48)),
        3: (48, Totals(1, 48), None),
    }
