"""apt-get is run again if a mirror answers with an error."""

from __future__ import annotations

from pathlib import Path

import debian
import pytest

APT = """#!/bin/sh
case $* in *indextargets*) echo http://mirror/debian Debian Debian main; exit ;; esac
echo call >> {calls}
[ "$(wc -l < {calls})" -gt {failures} ] && exit
echo "{error}"
exit 100
"""
BUSY = "E: Failed to fetch http://mirror/debian/dists/bookworm/InRelease  503  Service Unavailable"
UNKNOWN = "E: Unable to locate package nothing"


@pytest.mark.parametrize(("error", "failures", "calls", "succeeds"), [(BUSY, 1, 2, True), (BUSY, 9, 3, False), (UNKNOWN, 1, 1, False)])
def test_apt_get_is_run_again_if_a_mirror_is_busy(
    error: str, failures: int, calls: int, succeeds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, counted = tmp_path / "apt-get", tmp_path / "calls"
    program.write_text(APT.format(calls=counted, failures=failures, error=error))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(debian, "PAUSES", (0.0, 0.0))
    if succeeds:
        debian._apt("bookworm", tmp_path / "packages", "deb")
    else:
        with pytest.raises(debian.PackagesMissing, match=error.split(":")[1]):
            debian._apt("bookworm", tmp_path / "packages", "deb")
    assert len(counted.read_text().splitlines()) == calls
