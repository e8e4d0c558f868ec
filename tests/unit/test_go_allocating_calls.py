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
    ("names", "is_text", "chosen"),
    [
        (("CString", "mk", "mk_free"), False, {"mk"}),
        (("CString", "mk", "mk_free"), True, {"CString"}),
        (("mk", "grow"), True, {"mk", "grow"}),
        (("strdup", "mk"), True, {"strdup"}),
        (("CString", "a", "b", "c", "d"), False, set()),
        (("CString", "mk_free"), False, set()),
        (("malloc", "mk", "mk_free"), False, {"malloc", "mk"}),
        (("malloc", "a", "b", "c", "d"), False, {"malloc"}),
        (("malloc", "image_new", "image_width"), False, {"malloc", "image_new"}),
    ],
)
def test_functions_whose_names_say_nothing(names: tuple[str, ...], is_text: bool, chosen: set[str]) -> None:
    """They are listed only if no other call certainly fits, and if they are few."""
    assert {name for name, _ in choose_calls([(name, "main.f") for name in names], is_text, "", False)} == chosen


def test_a_function_named_after_the_type_hides_others() -> None:
    calls = [(name, "main.f") for name in ("malloc", "node_new", "mk")]
    assert choose_calls(calls, False, "node", True) == [("node_new", "main.f")]
    assert choose_calls(calls, False, "edge", True) == calls


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
