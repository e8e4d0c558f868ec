"""Escaping of text from a target: which characters pass, and that all output is escaped."""

from __future__ import annotations

import argparse
import io
import json
import shlex
import subprocess
import sys
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

import escapes
import pytest
from fake import FakeTarget
from heaps import ListAllocator, session
from hypothesis import given
from hypothesis import strategies as st

from findleaks import commands
from findleaks.audit.owner import Owner, OwnerSort
from findleaks.commands import Command, Invocation
from findleaks.debugger_session import describe_internal_error
from findleaks.errors import FindleaksError
from findleaks.escaping import Markup, json_line, visible
from findleaks.formatting import printable, table, wrap
from findleaks.progress import Bar
from findleaks.quoting import for_debugger, shell_quoted
from findleaks.report.heapmap import html, svg
from findleaks.report.heapmap.cells import Picture
from findleaks.target.base import Range
from findleaks.target.maps import regions_of
from findleaks.target.ptrace import status

NAME = escapes.ACTING.decode("utf-8", "surrogateescape")
SHOWN = (
    r"\x1b[31m\x9b2J\u009b3J\nFORGED\r\x08\x7f\x1b]0;T\x07\x1b]52;c;QQ==\x07\x1b]8;;x:y\x1b" + "\\"
    r"\u202e\u2066\u200f\u061c\u2028\u200b\ufeff\U000e0041" + "'\";&$(x)`<script>"
)


def test_control_characters_are_escaped() -> None:
    assert visible(NAME) == SHOWN
    assert printable(NAME, 500) == SHOWN and printable(NAME, 12) == r"\x1b[31m\x9…"


def test_other_characters_are_not_escaped() -> None:
    for text in ("", "plain text", "Grüße, 日本語, 😀", "a\\x1b", "é"):
        assert visible(text) is text


def test_every_character_of_unicode() -> None:
    """Characters are classified by the Unicode database, not by `str.isprintable`."""
    for code in range(0x11_0000):
        character = chr(code)
        acts = unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp")
        assert not acts or (visible(character) != character and visible(character).isascii()), hex(code)


@given(st.text() | st.binary().map(lambda data: data.decode("utf-8", "surrogateescape")))
def test_json_is_for_any_parser_and_keeps_names(name: str) -> None:
    line = json_line({"name": name, name: [name]})
    assert line.isascii() and line.isprintable()
    found = json.loads(line)
    found["name"].encode()  # no lone surrogate
    assert found["name"] == "".join(visible(c) if 0xD800 <= ord(c) < 0xE000 else c for c in name)


def test_backslashes_before_surrogates() -> None:
    """Backslashes that belong to an escape sequence, and backslashes that only look like it."""
    names = ["\\udc9b", "\\\udc9b", "\\\\\udc9b", "😀\udc9b\ud83d", "\udc9b😀"]
    assert json.loads(json_line(names)) == ["\\udc9b", "\\\\x9b", "\\\\\\x9b", "😀\\x9b\\ud83d", "\\x9b😀"]


@pytest.mark.parametrize("word", [NAME, "core", "a core", "it's", "\\", "a\nb", "\x1b'\\", "\udcff\udc9b1", "é\x01" + "7", "$'x'\x7f"])
def test_quoted_words_are_the_same_for_a_shell(word: str) -> None:
    quoted = shell_quoted(word)
    assert quoted.isprintable()
    done = subprocess.run(["bash", "-c", f"printf '%s\\0' {quoted}"], stdout=subprocess.PIPE, check=True)
    assert done.stdout == word.encode("utf-8", "surrogateescape") + b"\0"


def test_wrapped_text_and_tables_keep_their_lines() -> None:
    assert wrap(f"in {NAME}", 1000) == [f"in {SHOWN}"]
    assert wrap("12\u00a0KiB are held", 8) == ["12\u00a0KiB", "  are", "  held"]
    rows = table(("NAME", "N"), [("a\nb", "1"), ("long name", "2")], (1,), 80)
    assert rows == ["  NAME       N", r"  a\nb       1", "  long name  2"]


class Lines:
    """A result with these lines."""

    status = 0

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = lines

    def json(self) -> Iterable[Mapping[str, object]]:
        return [{"name": line} for line in self._lines]

    def text(self, width: int, invocation: Invocation) -> Iterable[str]:
        return self._lines


def emit(*lines: str, json: bool = False) -> str:
    cmd = Command(commands.CATALOGUE["find"], lambda made, args: Lines(lines), lambda parser: None)
    out = io.StringIO()
    made = session(FakeTarget({0x1000: bytes(64)}), [ListAllocator(0x1000, 0x1040, [])])
    commands.emit(cmd, made, argparse.Namespace(json=json), out, Invocation(), 80)
    return out.getvalue()


def test_a_line_stays_one_line() -> None:
    """`emit` escapes each line, even if a command has not escaped a name."""
    assert emit(f"a {NAME}", "b") == f"a {SHOWN}\nb\n"
    found = emit(NAME, json=True)
    assert found.isascii() and found.count("\n") == 1
    assert json.loads(found)["name"] == NAME.replace("\udc9b", "\\x9b")


def test_only_marks_of_findleaks_have_colours() -> None:
    assert emit(Markup("\x1b[34m#\x1b[0m"), "\x1b[34m#\x1b[0m") == "\x1b[34m#\x1b[0m\n\\x1b[34m#\\x1b[0m\n"


def test_errors_and_progress() -> None:
    assert str(FindleaksError(f"{NAME}: gone")) == f"{SHOWN}: gone"
    assert "\x1b" not in str(FindleaksError(describe_internal_error("findleaks", ["find"], ValueError(NAME))))

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    bar = Bar(stream)
    bar._began -= 10
    bar._last -= 10
    bar(f"reading {NAME}", 0.5)
    assert f"reading {SHOWN}" in stream.getvalue() and stream.getvalue().count("\x1b") == 1


@pytest.mark.parametrize(
    "name", ["cache", "a b", "std::map<int, Foo>::empty()", "x; reboot", "main thread's stack", "x'; reboot; '", "a\\x1b"]
)
def test_a_root_is_suggested_by_its_name(name: str) -> None:
    owner = Owner(OwnerSort.VARIABLE, name, ranges=[Range(0x5000, 0x5008)])
    assert owner.word == name
    assert shlex.split(shell_quoted(name)) == shlex.split(for_debugger(shell_quoted(name))) == [name]


@pytest.mark.parametrize("name", ["x`reboot`", "$_shell(reboot)", "(exit(1))", "&x", "*x", "--lost", ""])
def test_a_root_whose_name_needs_escapes_is_suggested_by_its_address(name: str) -> None:
    assert Owner(OwnerSort.VARIABLE, name, ranges=[Range(0x5000, 0x5008)]).word == "0x5000"
    assert Owner(OwnerSort.REGISTERS, name, words=[(1, 2)]).word == ""


def test_a_carriage_return_in_a_name_makes_no_mapping() -> None:
    """Linux escapes only line feeds."""
    rows = (
        b"1000-2000 rw-p 00000000 00:01 7  /tmp/a\r400000-500000 rwxp 00000000 00:00 0  [heap]\n2000-3000 r--p 00000000 00:01 8  /b\\012c\n"
    )
    first, second = regions_of(rows)
    assert (first.start, first.end, first.name) == (0x1000, 0x2000, "/tmp/a\r400000-500000 rwxp 00000000 00:00 0  [heap]")
    assert second.name == "/b\nc"


def test_a_carriage_return_in_a_process_name_makes_no_tracer() -> None:
    """/proc/PID/status begins with the name, in which Linux escapes line feeds and backslashes."""
    program = "open('/proc/self/comm', 'w').write('x\\rTracerPid:\\t1'); print(flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = status(process.pid)
        process.kill()
    assert found["TracerPid"] == "0" and found["Name"] == "x\rTracerPid:\t1"


class Residency:
    """An empty residency."""

    source = saved = ""

    def __bool__(self) -> bool:
        return False


def test_pictures_escape_their_title() -> None:
    picture: Any = Picture(f"{NAME}</script></title>", [], Residency(), 4096)  # type: ignore[arg-type]
    made = session(FakeTarget({0x1000: bytes(64)}), [ListAllocator(0x1000, 0x1040, [])])
    for text, same in ((svg.render_svg(picture), 0), (html.render_html(made, picture), 3)):
        escapes.check(text.encode(), "a picture")
        assert text.count("<script") == same and text.count("</script") == same and text.count("</title>") == 1
        assert r"\x1b[31m" in text


def test_columns_of_characters_of_other_scripts() -> None:
    """East Asian characters take two columns, combining marks none."""
    lines = table(("TYPE", "N"), [("注文", "1"), ("Cafe\u0301", "22")], (1,), 80)
    assert lines == ["  TYPE   N", "  注文   1", "  Cafe\u0301  22"]
    assert table(("TYPE", "N"), [("注文" * 10, "1")], (1,), 20, cut=0)[1] == "  注文注文注文注…  1"
