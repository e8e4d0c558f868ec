"""`diff` of two builds of a Rust program. Their symbols have different hashes and manglings, so `diff` matches rows by the demangled
name."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import truth
from debuggers import run_cli

import cores


class Build(NamedTuple):
    symbol: str  # the mangled name of the variable
    blocks: int  # number of blocks that the variable retains, as the program prints it
    core: Path


def build(folder: Path, count: int, *flags: str) -> Build:
    rustc, program = shutil.which("rustc"), folder / "shop"
    assert rustc is not None, "rustc comes with cargo: apt-get install cargo"
    folder.mkdir()
    source = str(truth.PROGRAMS / "rust_builds.rs")
    subprocess.run([rustc, "--edition=2021", "-O", "--crate-name=shop", *flags, source, "-o", program], check=True)
    names = subprocess.run(["nm", program], check=True, capture_output=True, text=True).stdout
    (symbol,) = re.findall(r"\S+4shop5CARTS\S*", names)
    with cores.Running([str(program), str(count)], folder / "run") as run:
        return Build(symbol, int(run.output.split()[0]), run.kernel_core())


def test_rows_of_two_builds_match(tmp_path: Path) -> None:
    first = build(tmp_path / "first", 3000, "-Cmetadata=first")
    last = build(tmp_path / "last", 9000, "-Cmetadata=last", "-Csymbol-mangling-version=v0", "--cfg=many")
    assert first.symbol != last.symbol and last.symbol.startswith("_R")
    grown = json.loads(run_cli("diff", "--json", str(first.core), str(last.core)).stdout)["grown"]
    (row,) = [one for one in grown if "CARTS" in one["name"]]
    assert row["name"] == "shop::CARTS (shop, data)"
    # If stale words on the stack refer to a few blocks, the variable does not retain these blocks.
    for counted, made in zip(row["counts"], (first.blocks, last.blocks)):
        assert made - 50 <= counted <= made
