"""`blocks --by type` prints the sums of the rows of `blocks`, in each front end."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from debuggers import gdb, lldb, objects, run_cli

SAMPLE = Path(__file__).parents[2] / "cores" / "sample.core.gz"
LEAKED = ("definite", "indirect")


def sum_rows(*options: str) -> dict[tuple[str | None, int | None], list[Any]]:
    """Compute the sums by type from the rows: blocks, bytes, leaked blocks and bytes, and the lowest address."""
    sums: dict[tuple[str | None, int | None], list[Any]] = defaultdict(lambda: [0, 0, 0, 0, 1 << 64])
    for line in run_cli("blocks", "--json", *options, str(SAMPLE), check=True).stdout.splitlines():
        row = json.loads(line)
        if "address" in row:
            one = sums[row["type"], None if row["type"] else row["size"]]
            leaked = row["kind"] in LEAKED
            one[:4] = one[0] + 1, one[1] + row["size"], one[2] + leaked, one[3] + leaked * row["size"]
            one[4] = min(one[4], int(row["address"], 16))
    return dict(sums)


@pytest.mark.parametrize("options", [(), ("--kind", "reachable"), ("--state", "all"), ("--size", "64-128"), ("--type", "shop::*")])
def test_sums_are_those_of_the_rows(options: tuple[str, ...]) -> None:
    found = json.loads(run_cli("blocks", "--by", "type", "--json", *options, str(SAMPLE), check=True).stdout)
    rows = {
        (one["type"], one["size"]): [
            one["blocks"],
            one["bytes"],
            one["leaked"]["blocks"],
            one["leaked"]["bytes"],
            int(one["example"], 16),
        ]
        for one in found["types"]
    }
    assert rows == sum_rows(*options) != {}
    assert found["rows"] == len(rows)
    assert found["total"] == {"blocks": sum(one[0] for one in rows.values()), "bytes": sum(one[1] for one in rows.values())}
    assert [one["bytes"] for one in found["types"]] == sorted((one["bytes"] for one in found["types"]), reverse=True)


def test_text_and_limit() -> None:
    text = run_cli("blocks", "--by", "type", "--limit", "3", str(SAMPLE), check=True).stdout
    assert "11 rows not shown (--limit 0)" in text
    assert run_cli("blocks", "--by", "type", "-o", "x.csv", str(SAMPLE)).stderr.startswith(
        "findleaks: blocks --by type cannot write a file"
    )
    assert "blocks --by type --kind reachable" in run_cli("find", "--kind", "reachable", str(SAMPLE)).stderr


def test_in_each_front_end(tmp_path: Path) -> None:
    import gzip

    core = tmp_path / "core"
    core.write_bytes(gzip.decompress(SAMPLE.read_bytes()))
    wanted = json.loads(run_cli("blocks", "--by", "type", "--json", str(core), check=True).stdout)["types"]
    for other in (gdb(["leaks blocks --by type --json"], "-c", str(core)), lldb(["leaks blocks --by type --json"], "-c", str(core))):
        assert json.loads(objects(other)[0])["types"] == wanted
