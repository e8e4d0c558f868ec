"""Read the line table of a unit.

pyelftools reads the header with the names of files. The line program is executed here, because
pyelftools creates an object for each step, which takes 20 µs, and units have 100,000 steps.
Sources: DWARF 5, 6.2 (line number information); DWARF 4, 6.2.4 (file numbers from 1)."""

from __future__ import annotations

import posixpath
from array import array
from bisect import bisect_right
from typing import Any, NamedTuple

from findleaks.debuginfo.dwarf import PHASE, DebugFile, Unit, text
from findleaks.debuginfo.entries import Malformed, sleb, uleb

MAX_STEPS = 1 << 22  # maximum number of steps of a line program, about 3 s
_POLL = 1 << 15  # steps between two polls for an interrupt: about 10 ms


class _Sequence(NamedTuple):
    """Rows of ascending addresses, from index `first` to `last`. The last row marks the end of the
    code."""

    low: int
    high: int
    first: int
    last: int


class Lines:
    """Maps addresses of one unit (of pyelftools) to file and line."""

    def __init__(self, file: DebugFile, unit: Unit) -> None:
        self._file = file
        top = unit.get_top_DIE()
        self._folder, self._name = text(top, "DW_AT_comp_dir"), text(top, "DW_AT_name")
        self._program = unit.dwarfinfo.line_program_for_CU(unit)
        self._addresses, self._files, self._lines = array("Q"), array("L"), array("L")
        self._sequences: list[_Sequence] = []
        if self._program is not None:
            try:
                self._run(self._program)
            # Damaged data; the rows before the damage are used
            except (IndexError, Malformed, OverflowError):
                pass
        self._sequences.sort()
        self._lows = [one.low for one in self._sequences]
        self._paths: dict[int, str] = {}

    def at(self, address: int) -> tuple[str, int]:
        """Return the path of the file and the line at an address of the file; "" and 0 if
        unknown."""
        index = bisect_right(self._lows, address) - 1
        while index >= 0 and address >= self._sequences[index].high:
            index -= 1
            if index < 0 or index < bisect_right(self._lows, address) - 8:
                return "", 0
        if index < 0:
            return "", 0
        sequence = self._sequences[index]
        # If several rows have the same address, the last one is used, as in binutils and LLDB.
        row = bisect_right(self._addresses, address, sequence.first, sequence.last) - 1
        return self.path(self._files[row]), self._lines[row]

    def path(self, number: int) -> str:
        """Return the path of the file with this number in the table; "" if there is none."""
        if number not in self._paths:
            self._paths[number] = self._file.ask(lambda: self._join_path(number), "")
        return self._paths[number]

    def _join_path(self, number: int) -> str:
        if self._program is None:
            return ""
        files, folders = self._program["file_entry"], self._program["include_directory"]
        new = self._program["version"] >= 5
        index = number if new else number - 1
        if not 0 <= index < len(files):
            return ""
        one = files[index]
        place = one["dir_index"] if new else one["dir_index"] - 1
        folder = folders[place].decode("utf-8", "surrogateescape") if 0 <= place < len(folders) else ""
        name = one["name"].decode("utf-8", "surrogateescape")
        joined = posixpath.normpath(posixpath.join(self._folder, folder, name))
        return joined.replace("//", "/", 1) if joined.startswith("//") else joined

    def _run(self, program: Any) -> None:
        """Execute the program: each step may change address, file and line, and add a row."""
        data = memoryview(self._file.sections.get(".debug_line", b""))[: program.program_end_offset]
        at, end = program.program_start_offset, len(data)
        base, line_base, line_range = program["opcode_base"], program["line_base"], program["line_range"] or 1
        unit, constant = program["minimum_instruction_length"], (255 - base) // line_range * program["minimum_instruction_length"]
        lengths = program["standard_opcode_lengths"]
        addresses, files, lines = self._addresses, self._files, self._lines
        address, number, line, first, steps = 0, 1, 1, len(addresses), 0
        little = self._file.order

        def row() -> None:
            addresses.append(address)
            files.append(number)
            lines.append(max(line, 0) & 0xFFFFFFFF)

        while at < end and steps < MAX_STEPS:
            steps += 1
            if not steps % _POLL:
                self._file.progress(PHASE, 0.0)
            code = data[at]
            at += 1
            if code >= base:
                advance, more = divmod(code - base, line_range)
                address += advance * unit
                line += line_base + more
                row()
            elif code == 0:
                size, at = uleb(data, at)
                if not 0 < size <= end - at:
                    return
                kind = data[at]
                if kind == 1:  # end_sequence
                    row()
                    self._close(first)
                    address, number, line, first = 0, 1, 1, len(addresses)
                elif kind == 2:  # set_address
                    address = int.from_bytes(data[at + 1 : at + size], little)
                at += size
            elif code == 1:  # copy
                row()
            elif code == 2:  # advance_pc
                value, at = uleb(data, at)
                address += value * unit
            elif code == 3:  # advance_line
                value, at = sleb(data, at)
                line += value
            elif code == 4:  # set_file
                number, at = uleb(data, at)
            elif code == 8:  # const_add_pc
                address += constant
            elif code == 9:  # fixed_advance_pc
                address += int.from_bytes(data[at : at + 2], little)
                at += 2
            else:  # a column, flags, or a later version's
                for _ in range(lengths[code - 1]):
                    at = uleb(data, at)[1]

    def _close(self, first: int) -> None:
        """Store the rows of a sequence from `first` on if they ascend. Rows of code that the linker
        removed, whose addresses start at 0, are dropped."""
        last = len(self._addresses) - 1
        rows = self._addresses[first : last + 1]
        if last > first and rows[0] and all(low <= high for low, high in zip(rows, rows[1:])):
            self._sequences.append(_Sequence(rows[0], rows[-1], first, last))
