"""Stacks of one leak become one entry. Stacks of two leaks do not."""

from __future__ import annotations

from findleaks.commands.track_text import _variants
from findleaks.tracking.merging import allocating_frame, merge_stacks
from findleaks.tracking.sites import Tally, TrackedSite
from findleaks.unwind.stacks import NamedFrame


def _frames(*names: str) -> tuple[NamedFrame, ...]:
    """Return frames, the innermost first. "name@3" is an address 3 bytes into a function, "name|module" a function of another module."""
    made = []
    for name in names:
        name, _, module = name.partition("|")
        function, _, offset = name.partition("@")
        made.append(NamedFrame(hash(function) % (1 << 40) + int(offset or 0), function, int(offset or 0), module or "shop"))
    return tuple(made)


def _site(frames: tuple[NamedFrame, ...], lost: int = 0, held: int = 0, freed: int = 0) -> TrackedSite:
    tallies = {name: Tally(count, 64 * count) for name, count in (("lost", lost), ("held", held), ("freed", freed))}
    return TrackedSite(frames, allocated=Tally(lost + held + freed, 64 * (lost + held + freed)), **tallies)


MALLOC = "malloc@5|libc.so.6"


def test_a_function_called_from_many_places_is_one_entry() -> None:
    found = [_site(_frames(MALLOC, "parse@9", f"caller_{n}", "main"), lost=n + 1) for n in range(99)]
    (entry,) = merge_stacks(found)
    assert entry.key is not None and entry.key.function == "parse"
    assert [frame.function for frame in entry.frames] == ["malloc", "parse"]
    assert (entry.total.lost.blocks, len(entry.sites), len(entry.variants)) == (4950, 99, 99)
    assert entry.variants[0].total.lost.blocks == 99  # the largest variant first
    assert [frame.function for frame in entry.variants[0].frames] == ["caller_98", "main"]


def test_long_stacks_of_variants_are_shortened() -> None:
    """The number of stacks, after the callers, is not cut off."""
    stacks = [(MALLOC, "parse", f"caller_of_{n}", *[f"function_{n}_{at}" for at in range(9)], "main") for n in range(2)]
    (entry,) = merge_stacks([_site(_frames(*names), lost=1) for names in stacks])
    entry.variants[0].stacks = 7
    first, second = _variants(entry.variants, "", 80, "block")
    assert (len(first), first[-10:], len(second), second[-1]) == (80, " (7 stacks)"[1:], 80, "…")
    assert "…" in first


def test_recursion_is_one_entry() -> None:
    found = [_site(_frames(MALLOC, "xmalloc", "lose", *["descend"] * n, "main"), lost=10) for n in range(1, 6)]
    (entry,) = merge_stacks(found)
    assert [frame.function for frame in entry.frames] == ["malloc", "xmalloc", "lose", "descend"]
    assert {(variant.stacks, variant.frames[0].function) for variant in entry.variants} == {(4, "descend"), (1, "main")}


def test_calls_of_one_function_at_several_places() -> None:
    """All frames are of the same functions. The variants differ in the addresses of calls."""
    found = [_site(_frames(MALLOC, f"lose@{offset}", "main@2"), lost=1) for offset in (16, 32)]
    (entry,) = merge_stacks(found)
    assert [(frame.function, frame.offset) for frame in entry.frames] == [("malloc", 5), ("lose", 0), ("main", 2)]
    assert sorted(variant.frames[0].offset for variant in entry.variants) == [16, 32]


def test_wrappers_of_malloc_do_not_join_two_leaks() -> None:
    wrapped = (MALLOC, "operator new(unsigned long)|libstdc++.so.6", "std::vector<int>::reserve(unsigned long)", "g_malloc0_n")
    first, second = (_site(_frames(*wrapped, name, "main"), lost=1) for name in ("lose", "lose_other"))
    assert [entry.key.function for entry in merge_stacks([first, second]) if entry.key] == ["lose", "lose_other"]


def test_leaked_and_freed_blocks_are_separate() -> None:
    """One function allocates strings that are leaked, and others that are freed."""
    lost, freed = (_site(_frames(MALLOC, "text", name, "main"), **fate) for name, fate in (("a", {"lost": 1}), ("b", {"freed": 9})))
    assert [(entry.total.lost.blocks, entry.total.freed.blocks) for entry in merge_stacks([freed, lost])] == [(1, 0), (0, 9)]


def test_stacks_without_frames_or_names() -> None:
    nameless = [_site((NamedFrame(0x1000, "", 0x1000, "shop"), NamedFrame(n, "", n, "")), lost=1) for n in (1, 2)]
    empty = [_site((), lost=1), _site((), lost=1)]
    entries = merge_stacks([*nameless, *empty])
    assert sorted(len(entry.sites) for entry in entries) == [1, 1, 2]


def test_functions_that_allocate_for_their_callers() -> None:
    serving = (
        "PyObject_Malloc",
        "xcalloc",
        "av_strdup",
        "ngx_palloc",
        "<alloc::vec::Vec<T> as Clone>::clone",
        "operator new[](unsigned long)",
    )
    own = ("parse", "allocate_session", "shop::Order::Order(int)", "<shop::Order as core::clone::Clone>::clone", "standard::f")
    assert all(allocating_frame(_frames(name, "main")) == 1 for name in serving)
    assert all(allocating_frame(_frames(name, "main")) == 0 for name in own)
    assert allocating_frame(_frames(*serving)) == 0  # there is no other frame
