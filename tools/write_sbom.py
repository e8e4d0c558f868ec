"""Write the bill of materials of a release: CycloneDX 1.6, JSON.

usage: python tools/write_sbom.py FILE [ARCHIVE…]

It lists findleaks with the SHA-256 of its archives, the libraries that its metadata declares, and the
core files that the source archive contains, with the licences of what is inside them (NOTICE)."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, Optional

ROOT = Path(__file__).resolve().parents[1]
IN_CORES = (
    ("GNU C Library", "LGPL-2.1-or-later", "parts of libc's data and of its first pages, as in the memory of the programs"),
    ("Linux vDSO", "GPL-2.0-only", "code that the kernel maps into each process"),
)
"""Name, licence and description of the parts of other works in cores/."""
LICENCES = {"capstone": "BSD-3-Clause", "pyelftools": "Unlicense", "zstandard": "BSD-3-Clause"}
"""Licences of the required libraries, which their metadata does not state as expressions."""


def sbom(archives: Sequence[Path]) -> dict[str, Any]:
    """Return the document. Its time is SOURCE_DATE_EPOCH, if that is set, so that it is reproducible."""
    version = metadata.version("findleaks")
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH") or datetime.now(timezone.utc).timestamp())
    libraries = list(requirements())
    cores = sorted(path for path in (ROOT / "cores").iterdir() if path.suffix in (".gz", ".xz") and ".truth" not in path.name)
    root = f"pkg:pypi/findleaks@{version}"
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": "findleaks",
                "version": version,
                "purl": root,
                "licenses": [{"expression": "Apache-2.0"}],
                "components": [_file(path) for path in archives],
            },
        },
        "components": [*libraries, *(_core(path) for path in cores)],
        "dependencies": [
            {"ref": root, "dependsOn": [library["bom-ref"] for library in libraries]},
            *({"ref": library["bom-ref"]} for library in libraries),
        ],
    }


def requirements() -> list[dict[str, Any]]:
    """Return a component for each library that the metadata of the installed findleaks declares."""
    found = []
    for need in metadata.requires("findleaks") or []:
        words, _, marker = need.partition(";")
        name = re.match(r"[\w.-]+", words)
        if name is None:
            continue
        extra = re.search(r'extra == "([\w-]+)"', marker)
        if extra and extra[1] in ("test", "docs"):
            continue
        found.append(_library(name[0], words[name.end() :].strip(), extra[1] if extra else None, marker.strip()))
    return found


def _library(name: str, versions: str, extra: Optional[str], marker: str) -> dict[str, Any]:
    made: dict[str, Any] = {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name.lower()}" + (f"#{extra}" if extra else ""),
        "name": name,
        "purl": f"pkg:pypi/{name.lower()}",
        "scope": "optional" if extra else "required",
        "properties": [{"name": "findleaks:versions", "value": versions or "any"}],
    }
    if marker:
        made["properties"].append({"name": "findleaks:marker", "value": marker})
    if name in LICENCES:
        made["licenses"] = [{"license": {"id": LICENCES[name]}}]
    return made


def _core(path: Path) -> dict[str, Any]:
    parts = [
        {"type": "library", "name": name, "description": what, "licenses": [{"license": {"id": licence}}]}
        for name, licence, what in IN_CORES
    ]
    return {**_file(path, f"cores/{path.name}"), "description": "memory of a test program, in the source archive only", "components": parts}


def _file(path: Path, name: str = "") -> dict[str, Any]:
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"type": "file", "name": name or path.name, "hashes": [{"alg": "SHA-256", "content": content}]}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(sbom([Path(one) for one in sys.argv[2:]]), indent=2) + "\n", encoding="utf-8")
