"""What Tab completes in LLDB."""

from __future__ import annotations

from pathlib import Path

import pytest

from findleaks.lldb.completion import BY_LLDB, NOTHING, complete_word, completes_words


@pytest.mark.parametrize(
    ("version", "expected"),
    [("lldb version 19.1.7", False), ("lldb version 20.1.0", True), ("lldb version 23.1.4\n  clang", True), ("lldb-1600.0.39.109", False)],
)
def test_versions_that_ask_a_command(version: str, expected: bool) -> None:
    assert completes_words(version) is expected


def test_words() -> None:
    assert complete_word([], "fi", ()) == {"values": ["find"]}
    assert complete_word(["find"], "--su", ()) == {"values": ["--suppressions"]}
    assert complete_word(["find", "--by"], "", ()) == {"values": ["type", "size", "kind", "site"]}
    assert complete_word(["diff"], "st", ("start", "end")) == {"values": ["start"]}
    assert complete_word(["find", "--kind"], "", ()) == NOTHING
    assert complete_word(["find"], "--nosuch", ()) == NOTHING
    assert complete_word(["nosuch"], "a", ()) == NOTHING
    assert complete_word(["find"], "a", ()) == NOTHING


def test_words_that_lldb_completes() -> None:
    for word in ("whatis", "count", "diff"):  # a variable, a function, a file
        assert complete_word([word], "a", ()) == BY_LLDB


def test_files_of_an_option(tmp_path: Path) -> None:
    (tmp_path / "out.json").touch()
    (tmp_path / "out.csv").touch()
    (tmp_path / "results").mkdir()
    both = {"values": [f"{tmp_path}/out.csv", f"{tmp_path}/out.json"]}
    assert complete_word(["find", "-o"], f"{tmp_path}/out", ()) == both
    assert complete_word(["find", "--output"], f"{tmp_path}/out.j", ()) == {"values": [f"{tmp_path}/out.json"]}
    # No space follows a directory, because the path continues.
    assert complete_word(["find", "-o"], f"{tmp_path}/re", ()) == {"completion": f"{tmp_path}/results/", "mode": "partial"}
    assert complete_word(["find", "-o"], f"{tmp_path}/nosuch/a", ()) == NOTHING
