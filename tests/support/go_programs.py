"""Compile Go programs with the machine's Go or an older version from the module proxy."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import truth

VERSIONS = ("1.18.10", "1.20.14", "1.21.13", "1.22.12", "1.24.11", "1.27.4")
STRIPPED = "-ldflags=-s -w"


def toolchain(version: str) -> str:
    """Return the path of the program `go` of a version from the module proxy; "": the machine's own."""
    if not version:
        return "go"
    environment = {**os.environ, "GOFLAGS": "-modcacherw", "GOTOOLCHAIN": "local"}
    words = ["go", "mod", "download", "-json", f"golang.org/toolchain@v0.0.1-go{version}.linux-amd64"]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=600)
    folder = Path(json.loads(done.stdout)["Dir"])
    for tool in (folder / "bin" / "go", *(folder / "pkg" / "tool").rglob("*")):
        tool.chmod(0o755)
    return str(folder / "bin" / "go")


def build(
    folder: Path, version: str, *flags: str, name: str = "go_truth", cgo: bool = False, machine: str = "amd64", more: str = ""
) -> Path:
    """Compile a program of tests/programs for a machine, which is given by Go's name. `more`: source text that is added to it."""
    program = folder / name
    compiler = {"CC": "aarch64-linux-gnu-gcc"} if machine == "arm64" else {}
    options = {"GOTOOLCHAIN": "local", "GOFLAGS": "", "CGO_ENABLED": str(int(cgo)), "GOARCH": machine}
    sources = [str(truth.PROGRAMS / f"{one}.go") for one in (name, "go_waiting")]
    if more:  # all sources must be in one folder
        (folder / "programs").mkdir()
        sources = [shutil.copy(one, folder / "programs") for one in sources]
        (folder / "programs" / "more.go").write_text(f"package main\n\n{more}\n")
        sources.append(str(folder / "programs" / "more.go"))
    words = [toolchain(version), "build", *flags, "-o", str(program), *sources]
    subprocess.run(words, check=True, cwd=folder, env={**os.environ, **options, **compiler}, timeout=600)
    return program


def main_frame(printed: str) -> tuple[str, str, int]:
    """Return name, file and line of the program's innermost function in the first stack that Go printed."""
    match = re.search(r"^goroutine \d[^\n]*\n(?:(?!goroutine ).*\n)*?(main\..*)\(.*\)\n\t(\S+):(\d+)", printed, re.MULTILINE)
    assert match is not None, printed
    return match[1], match[2], int(match[3])
