"""Call frame information against pyelftools: every row of every function of libc and of libstdc++."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import fake
import pytest
from elftools.dwarf.callframe import FDE
from elftools.elf.elffile import ELFFile

from findleaks.target.base import Module
from findleaks.unwind.cfi import FrameTable, Row, Rule

BIAS = 0x7F0000000000
LEAST = {"libc.so.6": 10_000, "libstdc++.so.6": 10_000}
"""Rows at the very least, so that a comparison of nothing does not pass."""

Told = tuple[tuple[int, int, bytes], dict[int, Rule]]
"""The canonical frame address's register, offset and expression; the rules of registers that are not just left alone."""

HOW = {
    "UNDEFINED": "undefined",
    "OFFSET": "offset",
    "VAL_OFFSET": "value",
    "REGISTER": "register",
    "EXPRESSION": "saved",
    "VAL_EXPRESSION": "is",
}


def by_pyelftools(row: dict[Any, Any]) -> Told:
    cfa, rules = row["cfa"], {}
    for register, rule in row.items():
        if isinstance(register, int) and rule.type != "SAME_VALUE":
            expression = rule.type.endswith("EXPRESSION")
            rules[register] = Rule(HOW[rule.type], 0 if expression else rule.arg or 0, bytes(rule.arg) if expression else b"")
    return ((-1, 0, bytes(cfa.expr)) if cfa.expr is not None else (cfa.reg, cfa.offset, b"")), rules


def by_us(row: Row) -> Told:
    return ((-1, 0, row.expression) if row.expression else (row.register, row.offset, b"")), row.rules


@pytest.mark.parametrize("name", LEAST)
def test_every_row_as_pyelftools_reads_it(name: str) -> None:
    """At the first byte that each row holds for, and at each function's last."""
    path = subprocess.run(["gcc", f"-print-file-name={name}"], check=True, capture_output=True, text=True).stdout.strip()
    compared = 0
    with Path(path).open("rb") as file:
        elf = ELFFile(file)
        loads = [segment for segment in elf.iter_segments() if segment["p_type"] == "PT_LOAD"]
        end = max(segment["p_vaddr"] + segment["p_memsz"] for segment in loads)
        target = fake.FakeTarget({BIAS + segment["p_vaddr"]: segment.data() for segment in loads})
        table = FrameTable(target, Module(path, BIAS, BIAS, BIAS + end))
        for entry in elf.get_dwarf_info(relocate_dwarf_sections=False).EH_CFI_entries():
            if not isinstance(entry, FDE):
                continue
            begin = entry["initial_location"]
            rows = entry.get_decoded().table
            last = begin + entry["address_range"] - 1
            for pc, row in [*((row["pc"], row) for row in rows), (last, rows[-1])]:
                found = table.row(BIAS + pc)
                assert found is not None, hex(pc)
                assert by_us(found) == by_pyelftools(row), hex(pc)
            compared += len(rows)
    assert compared > LEAST[name]
