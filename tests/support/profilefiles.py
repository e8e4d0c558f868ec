"""Read the files of `-o` with other programs, or from the description of their format: stacks as names, outermost first, and values."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
import shutil
import subprocess
import tarfile
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import debian
import jsonschema

Stack = tuple[str, ...]
Values = tuple[int, ...]

SPEEDSCOPE = "1.25.0"
DIGEST = "2831f1e0d26df914b477e522d78b8485511495a6af81a0b88158f8b48f9e0d03"
"""SHA-256 of the npm package speedscope of this version."""
PATIENCE = 180


class SchemaMissing(Exception):
    """The npm package cannot be downloaded; the message lists what was tried."""


def parse_folded(file: Path, columns: int = 1) -> dict[Stack, Values]:
    """Parse the folded format: a line for each stack, with the given number of values."""
    found = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        stack, *values = line.rsplit(" ", columns)
        assert tuple(stack.split(";")) not in found
        found[tuple(stack.split(";"))] = tuple(map(int, values))
    return found


def pprof(file: Path, *options: str) -> str:
    """Return the output of `go tool pprof`, without symbols from a server. Since Go 1.25, the first call on a machine compiles pprof."""
    words = ["go", "tool", "pprof", "-symbolize=none", *options, str(file)]
    return subprocess.run(words, capture_output=True, text=True, timeout=3 * PATIENCE, check=True).stdout


_LOCATION = re.compile(r" *(\d+): (0x[0-9a-f]+) (?:M=(\d+) )?(.*)")
_FUNCTION = re.compile(r"(.*) (\S*):(\d+)(?::\d+)? s=\d+")


def pprof_samples(file: Path) -> tuple[list[str], dict[Stack, Values], dict[str, str]]:
    """Return the names of the values, the samples, and the address of each name, as Go's own reader prints them."""
    text = pprof(file, "-raw")
    head, _, rest = text.partition("\nLocations\n")
    lines = head[head.index("Samples:\n") + len("Samples:\n") :].splitlines()
    locations: dict[str, list[str]] = {}
    addresses: dict[str, str] = {}
    last = ""
    for line in rest.partition("Mappings\n")[0].splitlines():
        located = _LOCATION.fullmatch(line)
        if located:
            last = located[1]
            locations[last] = []
        function = _FUNCTION.fullmatch(located[4] if located else line.strip())
        assert function, line
        locations[last].append(function[1])
        addresses[function[1]] = located[2] if located else ""
    samples: dict[Stack, Values] = {}
    for line in lines[1:]:
        values, _, stack = line.partition(":")
        names = [name for number in stack.split() for name in locations[number]]
        key = tuple(reversed(names))
        old = samples.get(key, (0,) * len(values.split()))
        samples[key] = tuple(a + b for a, b in zip(old, map(int, values.split())))
    return [word.removesuffix("[dflt]") for word in lines[0].split()], samples, addresses


def speedscope(file: Path) -> dict[str, dict[Stack, int]]:
    """Return the samples of each profile. The file is valid by speedscope's own schema."""
    made = json.loads(file.read_text(encoding="ascii"))
    jsonschema.validate(made, schema())
    names = [frame["name"] for frame in made["shared"]["frames"]]
    found: dict[str, dict[Stack, int]] = {}
    for profile in made["profiles"]:
        sums: Counter[Stack] = Counter()
        assert len(profile["samples"]) == len(profile["weights"])
        for stack, weight in zip(profile["samples"], profile["weights"]):
            sums[tuple(names[at] for at in stack)] += weight
        assert profile["endValue"] == sum(sums.values())
        found[profile["name"]] = dict(sums)
    return found


@functools.cache
def schema() -> dict[str, Any]:
    """Return the schema in speedscope's package, downloaded once with npm. Raises SchemaMissing."""
    folder = debian.cache() / "speedscope"
    archive = folder / f"speedscope-{SPEEDSCOPE}.tgz"
    with debian.hold_lock(folder):
        if not archive.exists():
            npm = shutil.which("npm")
            if npm is None:
                raise SchemaMissing("the package speedscope comes through npm, which is not here: run tests/support/install.sh")
            words = [npm, "pack", "--silent", "--ignore-scripts", f"speedscope@{SPEEDSCOPE}"]
            done = subprocess.run(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=PATIENCE)
            if done.returncode or not archive.exists():
                raise SchemaMissing(f"`{' '.join(words)}` failed:\n{done.stdout}")
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        if found != DIGEST:
            raise SchemaMissing(f"{archive} has SHA-256 {found}, not {DIGEST}: delete it and try again")
    with tarfile.open(archive) as package:
        file = package.extractfile("package/dist/release/file-format-schema.json")
        assert file is not None
        made: dict[str, Any] = json.loads(file.read())
        return made


def flamegraph(file: Path) -> tuple[dict[str, Any], dict[tuple[tuple[str, str], ...], Values]]:
    """Return a page's `meta`, and the self values of its nodes by their path of names and modules, in the order of the page."""
    text = file.read_text(encoding="utf-8")
    meta = json.loads(_element(text, "application/json"))
    values, number, shift = [], 0, 0
    for byte in zlib.decompress(base64.b64decode(_element(text, "text/plain"))):
        number |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            values.append(number - 1)
            number = shift = 0
    nodes = meta["nodes"]
    columns = []
    for first in range(0, len(values), nodes):
        column, before = [], 0
        for code in values[first : first + nodes]:
            before += -(code + 1) // 2 if code % 2 else code // 2
            column.append(before)
        columns.append(column)
    depths, labels, *own = columns
    assert len(own) == len(meta["measures"]) * (1 + meta["compared"])
    found: dict[tuple[tuple[str, str], ...], Values] = {}
    path: list[tuple[str, str]] = []
    for at in range(nodes):
        assert depths[at] <= len(path) + (at > 0)
        del path[max(depths[at] - 1, 0) :]
        if at:
            path.append((meta["names"][labels[at]], meta["modules"][meta["moduleOf"][labels[at]]]))
        assert tuple(path) not in found
        found[tuple(path)] = tuple(column[at] for column in own)
    return meta, found


def _element(text: str, kind: str) -> str:
    (found,) = re.findall(rf'<script type="{kind}"[^>]*>(.*?)</script>', text, re.DOTALL)
    return str(found)
