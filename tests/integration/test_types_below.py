"""`roots` lists the types below the variable that retains most memory. The bytes of an object include its characters, items and buffers."""

from __future__ import annotations

import json
from pathlib import Path

import debuggers
import mallocs_python
import pytest
import real

import cores

COUNT, LENGTH = 3000, 3000
PYTHON = f"""
class Page:
    def __init__(self, number):
        self.data, self.links = bytearray({LENGTH}), [None] * 50
cache = {{number: Page(number) for number in range({COUNT})}}
print("ready", flush=True)
import time
time.sleep(3600)
"""
PERL = f"""
our %pages;
for my $number (1 .. {COUNT}) {{ $pages{{$number}} = {{ data => "page $number " . "x" x {LENGTH}, number => $number }}; }}
$| = 1; print "ready\\n"; sleep 3600 while 1;
"""
PHP = f"""<?php
class Pages {{ public $all = []; }}
$pages = new Pages();
for ($number = 0; $number < {COUNT}; $number++) {{ $pages->all[] = range($number, $number + {LENGTH} / 16); }}
echo "ready\\n"; while (true) {{ sleep(3600); }}
"""
PROGRAMS = {
    "perl": (PERL, "string", ("entry of a hash", "body of a value")),
    "php": (PHP, "array of 128–255", ("elements of an array",)),
    "python": (PYTHON, "bytearray", ()),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_bytes_of_types(name: str, tmp_path: Path) -> None:
    text, largest, parts = PROGRAMS[name]
    source = tmp_path / f"program.{name}"
    source.write_text(text)
    python = mallocs_python.get("3.11")
    words = python.command(str(source)) if name == "python" else [real.executable(name), *["-n"][: name == "php"], str(source)]
    with cores.Running(words, tmp_path / "run", python.environment() if name == "python" else None) as running:
        found = json.loads(debuggers.findleaks("verdict", "--json", "--pid", str(running.pid)))
    (held,) = (one for one in found["findings"] if one["finding"] == "held")
    first = held["evidence"]["types"][0]
    assert first["type"] == largest and COUNT - 5 <= first["objects"] <= 2 * COUNT
    assert COUNT * LENGTH <= first["bytes"] <= COUNT * LENGTH * 3  # the capacity of PHP's arrays is a power of two
    assert sum(one["bytes"] for one in held["evidence"]["types"]) <= held["bytes"]
    assert not [one for one in held["evidence"]["types"] if one["type"] in parts]
