"""Suppression files: what a rule covers, and how a bad line is reported."""

from __future__ import annotations

from pathlib import Path

import pytest
from hostile import lines_run

from findleaks.audit.suppressions import load_suppressions, matches_pattern, parse_rules
from findleaks.errors import UsageError
from findleaks.wildcards import matches


def rule(text: str, type_: str = "", size: int = 48, hint: str = "", module: str = "", site: str = "") -> bool:
    return parse_rules(text, "rules").match(type_, size, hint, module, site) is not None


@pytest.mark.parametrize(
    ("line", "covered", "not_covered"),
    [
        ("leak:Ellipsoid", "osgeo::proj::datum::Ellipsoid", "osgeo::proj::datum::Cylinder"),
        ("leak:proj*Ellip", "osgeo::proj::datum::Ellipsoid", "osgeo::datum::proj"),
        ("leak:^osgeo", "osgeo::X", "my::osgeo::X"),
        ("leak:soid$", "datum::Ellipsoid", "Ellipsoid[3]"),
        ("leak:^Foo$", "Foo", "Foo2"),
        ("leak:^a*z$", "a to z", "a to z!"),
        ("type:Foo", "Foo", "ns::Foo"),
        ("type:*::Foo", "ns::Foo", "Foo"),
        ("type:Foo[?]", "Foo[3]", "Foo[33]"),
        ("type:std::map<*>", "std::map<int, Foo>", "std::map<int, Foo>::iterator"),
    ],
)
def test_types(line: str, covered: str, not_covered: str) -> None:
    assert rule(line, covered)
    assert not rule(line, not_covered)


@pytest.mark.parametrize(
    ("line", "low", "high"),
    [("size:48", 48, 48), ("size:48-64", 48, 64), ("size:1K-2K", 1024, 2048), ("size: 1k - 1M", 1024, 1 << 20), ("size:-16", 0, 16)],
)
def test_sizes(line: str, low: int, high: int) -> None:
    assert rule(line, size=low) and rule(line, size=high)
    assert not rule(line, size=high + 1)
    assert low == 0 or not rule(line, size=low - 1)


def test_a_size_may_be_open_above() -> None:
    assert rule("size:1G-", size=1 << 40) and not rule("size:1G-", size=(1 << 30) - 1)


def test_leak_covers_modules_and_sites_too() -> None:
    assert rule("leak:libfoo.so", module="/usr/lib/libfoo.so")
    assert rule("leak:foo_create", site="main < foo_create < malloc")
    assert not rule("leak:foo", type_="", module="", site="", hint="foo")
    assert rule("module:libfoo*", module="/usr/lib/libfoo.so.1") and rule("module:/usr/*", module="/usr/lib/libfoo.so.1")
    assert not rule("module:*", module="")


def test_strings_match_with_or_without_their_quotes() -> None:
    assert rule("string:GET *", hint='"GET /index.html…"')
    assert rule('string:"GET *', hint='"GET /index.html…"')
    assert rule("string:session-*", hint='+8 "session-42"')
    assert not rule("string:GET", hint='"GET /index.html…"')
    assert not rule("string:*", hint="")
    assert rule("string:zeros", hint="zeros")


def test_uses_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "known"
    path.write_text("\ufeff# what we know\n\n  leak:Foo  \r\ntype:Bar\nsize:4096-\n", encoding="utf-8")
    rules = load_suppressions(str(path))
    assert [str(r) for r in rules.rules] == ["leak:Foo", "type:Bar", "size:4096-"]
    assert [r.line for r in rules.rules] == [3, 4, 5]
    for type_ in ("Foo", "aFoo", "Foo[2]", "Baz"):
        found = rules.match(type_, 100, "")
        assert (found is None) == (type_ == "Baz")
        if found:
            rules.add(found, 10, 1000)
    foo, bar, big = rules.rules
    assert rules.uses[foo].groups == 3 and rules.uses[foo].blocks == 30 and rules.uses[foo].bytes == 3000
    assert rules.list_unused() == [bar, big]
    assert rules.match("Foo", 5000, "") is foo


@pytest.mark.parametrize(
    "line",
    ["Foo", "leek:Foo", "leak:", "size:", "size:x", "size:-", "size:64-48", "size:1-2-3", "size:4 8", ":x", "fun:x", "size:" + "9" * 5000],
)
def test_an_invalid_line_is_reported(tmp_path: Path, line: str) -> None:
    path = tmp_path / "known"
    path.write_text(f"# fine\nleak:ok\n{line}\n")
    with pytest.raises(UsageError) as caught:
        load_suppressions(str(path))
    assert str(caught.value).startswith(f"{path}:3: ")
    assert "\n" not in str(caught.value)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no-such-file: cannot read suppressions: no such file"):
        load_suppressions(str(tmp_path / "no-such-file"))
    with pytest.raises(UsageError, match="is a directory"):
        load_suppressions(str(tmp_path))


def test_invalid_utf_8(tmp_path: Path) -> None:
    path = tmp_path / "known"
    path.write_bytes(b"\xff\xfe\0leak")
    with pytest.raises(UsageError, match=":1: "):
        load_suppressions(str(path))


def test_globs() -> None:
    assert matches("", "") and matches("*", "") and matches("**", "x") and not matches("?", "") and not matches("", "x")
    assert matches("a*b*c", "aXbYbZc") and not matches("a*b*c", "aXbYbZ")
    assert matches("[a]", "[a]") and not matches("[a]", "a")
    assert matches("f[abi:cxx11]*", "f[abi:cxx11](int)") and not matches("f[abi:cxx11]", "fa") and matches("[!a]]?", "[!a]]x")
    assert matches("a*\\n$", "a\n\\n$") and not matches("A", "a")
    assert matches_pattern("?", "a?b") and not matches_pattern("?", "ab")
    assert matches_pattern("*", "") and matches_pattern("^$", "") and not matches_pattern("^$", "x")


def test_many_stars_take_no_time() -> None:
    found: list[bool] = []
    lines_run(lambda: found.append(matches("*a" * 30 + "b", "a" * 200)), 200_000)
    lines_run(lambda: found.append(matches_pattern("a*" * 30 + "b", "a" * 200)), 200_000)
    assert found == [False, False]
