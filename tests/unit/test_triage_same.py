"""Leaks of many cores compared: if one core has too few blocks to decide, other cores decide."""

from __future__ import annotations

from findleaks.triage.groups import group_leaks
from findleaks.triage.identity import signature_of
from findleaks.triage.row import OK, PARTIAL, LeakSum, Row
from findleaks.triage.same import same_leaks

LIST = ("→ text", "→ 24 B", ".")
NUMBER = ("→ 168 B", ".", ".")


def make_leak(words: tuple[str, ...] = (), leaks: int = 10, size: int = 24, label: str = "") -> LeakSum:
    return LeakSum(signature_of("shop", label, size, words), "", "", leaks, leaks, leaks * 24, 0x1000, label, size, False, words)


def make_groups(*cores: list[LeakSum]) -> list[set[LeakSum]]:
    leaks = [(core, one) for core, several in enumerate(cores) for one in several]
    return [{one for _, one in leaks if one.signature in same.signatures} for same in same_leaks(leaks)]


def test_contradictory_leaks_are_different() -> None:
    assert len(make_groups([make_leak(LIST)], [make_leak(NUMBER)])) == 2
    assert len(make_groups([make_leak(LIST)], [make_leak((".", ".", "."))])) == 2
    assert len(make_groups([make_leak(("libfoo code", ".", "."))], [make_leak(("libbar code", ".", "."))])) == 2
    assert len(make_groups([make_leak(LIST)], [make_leak(LIST, size=56)])) == 2


def test_a_leak_with_one_other_target_is_the_same() -> None:
    """Three differences between cores do not contradict: pointers to freed memory, null pointers, and whether a block is reachable."""
    usual = make_leak(("→ 40 B", "→ 65,544 B", "0", "→ 24 B"), 50, 5960)
    others = [
        make_leak(words, 3, 5960)
        for words in ((".", "held", "held", "held"), ("0", "→ 65,544 B", "0", "0"), ("?", "→ blocks", "0", "→ 24 B"))
    ]
    assert make_groups([usual], *([one] for one in others)) == [{usual, *others}]


def test_a_leak_joins_the_most_similar_one() -> None:
    both = [make_leak(LIST, 30), make_leak(NUMBER, 20)]
    few = make_leak(("→ text", "→ 24 B", "?"), 1)
    assert next(one for one in make_groups(both, [few]) if few in one) == {both[0], few}


def test_two_leaks_of_one_core_stay_separate() -> None:
    """Also if only one word differs, which would be too little to separate leaks of different cores."""
    words = ("libfoo code", "libfoo data", "libfoo constants", "held")
    one, other = make_leak(words, 20), make_leak((*words[:3], "."), 10)
    assert make_groups([one], [other]) == [{one, other}]
    assert make_groups([one, other], [one], [other]) == [{one}, {other}]


def test_arrays_of_many_lengths_are_one_leak() -> None:
    tables = [make_leak(size=120 + 16 * at, leaks=2, label="array of text") for at in range(20)]
    folder = make_leak(size=1288, leaks=30, label="array of text")
    assert sorted(map(len, make_groups(*([one, folder] for one in tables)))) == [1, 20]
    assert len(make_groups(tables[:3])) == 3


def test_words_that_few_texts_begin_with() -> None:
    names = [make_leak(size=0, leaks=1, label=f'text "{name}"') for name in ("anna", "bert", "carla", "dora")]
    requests = make_leak(size=0, leaks=9, label='text "GET"')
    assert make_groups([requests], *([one] for one in names)) in ([{requests}, set(names)], [set(names), {requests}])


def test_groups_of_only_partial_cores_come_last() -> None:
    rows = [
        Row(name, status, "shop", signatures=(one,))
        for name, status, one in (("a", PARTIAL, make_leak(LIST)), ("b", OK, make_leak(NUMBER)))
    ]
    rows += [Row(name, PARTIAL, "shop", signatures=(make_leak(LIST), make_leak(NUMBER))) for name in "cd"]
    found = group_leaks(rows).groups
    assert [(one.cores, one.partial, one.doubtful) for one in found] == [(3, 2, False), (3, 3, True)]


def test_groups_of_rows() -> None:
    """A row lists each group once, even if a core has it twice. Groups of the baseline are not new, and are not counted."""
    tables = [make_leak(size=120 + 16 * at, leaks=1, label="array of text") for at in range(20)]
    rows = [Row("a", OK, "shop", signatures=tuple(tables)), Row("b", OK, "shop", signatures=(make_leak(LIST),))]
    old = Row("old", OK, "shop", signatures=(make_leak(("→ text", "held", "?"), 1),))
    found = group_leaks(rows, [old])
    assert [(one.cores, one.leaks, one.new) for one in found.groups] == [(1, 20, True), (1, 10, False)]
    assert [one.what for one in found.groups] == ["array of text", "24 B → text, blocks"]
    assert [[one.leaks for one in row.signatures] for row in found.rows] == [[20], [10]]
    assert {leak.signature for row in found.rows for leak in row.signatures} == {one.signature for one in found.groups}
