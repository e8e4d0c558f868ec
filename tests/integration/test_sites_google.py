"""Samples of Google's tcmalloc in a core: each sampled block has the stack that the program prints. This tcmalloc takes minutes to build,
so the test is in the matrix."""

from __future__ import annotations

from pathlib import Path

import mallocs_google
import pytest
import recorded

from findleaks.session import Session
from findleaks.target.core import open_core

pytestmark = pytest.mark.matrix


def test_sampled(tmp_path: Path) -> None:
    google = mallocs_google.Google("8k", tmp_path)
    # Its unwinder follows frame pointers.
    program = google.compile(recorded.SOURCE, tmp_path / "sites", (*recorded.FLAGS, "-fno-omit-frame-pointer"))
    picture = recorded.take(program, tmp_path / "run", 3, 100)
    (found,) = Session(open_core(str(picture.core))).sites.recordings
    assert not found.warnings and found.sampled
    assert sum(site.live.blocks for site in found.sites) == len(found.addresses) > 100
    made = {one.address: one for one in picture.made}
    listed = {row["site"]["number"]: row["site"]["frames"] for row in picture.ask("caches", "--sites")["sites"]}
    rows = [row for row in picture.rows() if row["site"] and int(row["address"], 16) in made]
    assert len(rows) > 100
    for row in rows:
        one = made[int(row["address"], 16)]
        names = [frame["function"] for frame in listed[row["site"]]]
        first = names.index(one.functions[0])
        assert tuple(names[first : first + len(one.functions)]) == one.functions
        assert row["size"] == one.size
    assert "≈ " in picture.text("find", "--by", "site")
    assert "find --by site" in picture.ask("find")["next"]
