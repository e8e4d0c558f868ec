"""Unwinding by ARM's tables and by the code itself: at calls, the caller's registers are where the debug information of Debian's glibc
says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Optional

import fake
import foreign
import foreign_truth
import pytest
from elftools.dwarf import callframe
from elftools.elf.elffile import ELFFile

from findleaks.disasm.arm import Code
from findleaks.target.arch import ARM
from findleaks.target.base import Module
from findleaks.unwind.arm import ArmRows
from findleaks.unwind.cfi import Row
from findleaks.unwind.ehabi import ExceptionTable

pytestmark = pytest.mark.matrix
BIAS = 0x10000000
EVERY = 20  # name of the function


class Call(NamedTuple):
    """The return address of a call in Thumb code, and how to unwind there. The canonical frame address is register + offset, and saved
    registers are at these distances from it."""

    returns: int
    register: int
    offset: int
    saved: dict[int, int]


@pytest.fixture(scope="module")
def libc() -> tuple[Path, Path]:
    """Return glibc and its debug file."""
    root = foreign_truth.tree(foreign.ARMHF, "bookworm")
    library = root / "lib/arm-linux-gnueabihf/libc.so.6"
    with library.open("rb") as file:
        (note,) = ELFFile(file).get_section_by_name(".note.gnu.build-id").iter_notes()
    build_id = note["n_desc"]
    return library, root / f"usr/lib/debug/.build-id/{build_id[:2]}/{build_id[2:]}.debug"


def calls(code: Code, debug: Path) -> Iterator[Call]:
    """Return the calls of every twentieth function, according to its debug information."""
    with debug.open("rb") as file:
        elf = ELFFile(file)
        functions = {symbol["st_value"] & ~1 for symbol in elf.get_section_by_name(".symtab").iter_symbols() if symbol["st_value"] & 1}
        entries = [entry for entry in elf.get_dwarf_info(relocate_dwarf_sections=False).CFI_entries() if isinstance(entry, callframe.FDE)]
        for entry in entries[::EVERY]:
            begin, rows = entry["initial_location"], entry.get_decoded().table
            if begin not in functions:
                continue
            for returns in range(begin + 4, begin + entry["address_range"], 2):
                row = [row for row in rows if row["pc"] < returns][-1]
                if code.find_callee(BIAS + returns, True) is not None and row["cfa"].reg is not None:
                    yield Call(returns, row["cfa"].reg, row["cfa"].offset, saved_registers(row))


def saved_registers(row: dict[Any, Any]) -> dict[int, int]:
    return {register: rule.arg for register, rule in row.items() if isinstance(register, int) and rule.type == "OFFSET" and register < 16}


def is_same(row: Optional[Row], call: Call) -> bool:
    """Return whether unwinding agrees with the debug information on the return address, the callee-saved registers and the stack
    pointer."""
    if row is None or (row.register, row.offset) != (call.register, call.offset):
        return False
    kept = (*range(4, 12), 14)
    found = {register: rule.value for register, rule in row.rules.items() if register in kept and rule.how == "offset"}
    return found == {register: distance for register, distance in call.saved.items() if register in kept}


def test_tables_and_code(libc: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Unwinding by tables is always correct. Unwinding by code is correct except after a call that does not return, where the following
    code belongs to another function. Then no return address is found, and the stack ends."""
    library, debug = libc
    plain = callframe.CallFrameInfo._parse_cie_augmentation
    monkeypatch.setattr(
        callframe.CallFrameInfo,
        "_parse_cie_augmentation",
        lambda self, header, structs: (b"", {}) if header["augmentation"] == b"S" else plain(self, header, structs),
    )
    with library.open("rb") as file:
        loads = [segment for segment in ELFFile(file).iter_segments() if segment["p_type"] == "PT_LOAD"]
        memory = {BIAS + segment["p_vaddr"]: segment.data() for segment in loads}
        end = max(BIAS + segment["p_vaddr"] + segment["p_memsz"] for segment in loads)
    target, module = fake.FakeTarget(memory, arch=ARM), Module(str(library), BIAS, BIAS, end)
    table, rows = ExceptionTable(target, module), ArmRows(target, lambda address: module, lambda address: True)
    by_table, by_code = [], []
    for call in calls(Code(target.read), debug):
        found = table.row(BIAS + call.returns - 1)
        if found is not None:
            by_table.append(is_same(found, call))
        likely = [*rows._by_returns(BIAS + call.returns, False, True), *(row for row, _ in rows._by_beginning(BIAS + call.returns, True))]
        by_code.append(is_same(next(iter(likely), None), call))
    assert len(by_table) > 150
    assert all(by_table)
    assert len(by_code) > 500
    assert sum(by_code) > 0.97 * len(by_code), (sum(by_code), len(by_code))
