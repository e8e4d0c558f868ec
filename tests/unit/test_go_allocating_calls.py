"""Of the calls of C functions in a Go program, those are chosen that may have allocated the leaked blocks."""

from __future__ import annotations

import pytest

from findleaks.audit.findings.leak_sources import list_source_remedies
from findleaks.runtimes.go.native_owners import choose_calls

CALLS = ("CString", "CBytes", "malloc", "parser_new", "parser_run", "open_reader", "image_load")


@pytest.mark.parametrize(
    ("is_text", "type_name", "has_parts", "chosen"),
    [
        (True, "", False, {"CString"}),
        (False, "", False, {"CBytes", "malloc", "parser_new", "parser_run", "open_reader", "image_load"}),
        (False, "", True, {"malloc", "parser_new", "parser_run", "open_reader", "image_load"}),
        (False, "Parser", False, {"parser_new"}),
        (False, "parser_t", True, {"parser_new"}),
        (False, "text::Parser<int, std::string>", True, {"parser_new"}),
        (False, "Image", False, {"image_load"}),
        (False, "text::Node", True, {"parser_new", "parser_run", "open_reader", "image_load"}),
        (False, "node", True, {"malloc", "parser_new", "parser_run", "open_reader", "image_load"}),
    ],
)
def test_calls(is_text: bool, type_name: str, has_parts: bool, chosen: set[str]) -> None:
    found = choose_calls([(name, "main.f") for name in CALLS], is_text, type_name, has_parts)
    assert {name for name, _ in found} == chosen


@pytest.mark.parametrize(
    ("call", "type_name", "has_parts", "remedy"),
    [
        ("C.parser_new in main.open (main.go:7)", "", True, "call the function of the library that deletes such an object"),
        ("C.parser_new in main.open (main.go:7)", "Parser", False, "call the function of the library that deletes such an object"),
        # The program made the structures itself, for example the nodes of a list.
        ("C.malloc in main.push (main.go:7)", "", True, "free each of these blocks with C.free"),
        ("C.calloc in main.push (main.go:7)", "node", True, "free each of these blocks with C.free"),
        ("C.CString in main.query (main.go:7)", "", False, "free each of these blocks with C.free"),
    ],
)
def test_remedies(call: str, type_name: str, has_parts: bool, remedy: str) -> None:
    (one,) = list_source_remedies({"allocating_calls": {"calls": [call], "type": type_name or None, "has_parts": has_parts}})
    assert one.startswith(remedy)
