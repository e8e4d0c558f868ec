"""Of the calls of C functions in a Go program, those are chosen that may have allocated the leaked blocks."""

from __future__ import annotations

import pytest

from findleaks.runtimes.go.native_owners import choose_calls

CALLS = ("CString", "malloc", "parser_new", "parser_run", "open_reader", "image_load")


@pytest.mark.parametrize(
    ("is_text", "type_name", "chosen"),
    [
        (True, "", {"CString"}),
        (False, "", {"malloc", "parser_new", "parser_run", "open_reader", "image_load"}),
        (False, "Parser", {"parser_new"}),
        (False, "text::Parser<int, std::string>", {"parser_new"}),
        (False, "Image", {"image_load"}),
        (False, "Node", {"parser_new", "parser_run", "open_reader", "image_load"}),
    ],
)
def test_calls(is_text: bool, type_name: str, chosen: set[str]) -> None:
    found = choose_calls({(name, "main.f"): name for name in CALLS}, is_text, type_name)
    assert set(found.values()) == chosen
