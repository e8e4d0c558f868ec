"""The pages of the Python API: the examples of the tutorial print the documented output, the example with pandas finds the leak of the
sample core, and the reference is up to date."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import schemas
from debuggers import PATIENCE, ROOT

SAMPLE = ROOT / "cores" / "sample.core.gz"
PAGE = ROOT / "docs" / "python-api.md"


def test_the_tutorial_prints_what_it_shows(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    found = re.findall(r"```(python|text)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    shown = 0
    for (kind, code), (following, output) in zip(found, found[1:]):
        if (kind, following) == ("python", "text") and "do_the_work" not in code:
            exec(code, names)  # each example uses the variables of the previous ones
            assert capsys.readouterr().out == output
            shown += 1
    assert shown == 5


def test_the_example_with_pandas_finds_the_leak() -> None:
    """The sample's program printed what it leaks: 300 requests of 200 bytes, and 120 orders (cores/README.md)."""
    words = [sys.executable, str(ROOT / "docs" / "examples" / "find_the_leak.py"), str(SAMPLE)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["200", "bytes", "300", "60000"] in lines
    assert ["shop::Order", "120", "8640"] in lines
    assert "definite 72-byte block, shop::Order with 0 references" in done.stdout
    assert ["120", "8640", "13040", "shop::Order"] in lines


def test_the_reference_is_current() -> None:
    pages = schemas.tool("generate_api_docs").pages()
    assert len(pages) == 2
    for file, text in pages.items():
        assert file.read_text(encoding="utf-8") == text, "run .venv/bin/python tools/generate_api_docs.py"
