"""Find stale words that hold lost blocks, without the help of findleaks, in memory that the program under test never wrote.

A register or a stack slot with an old value, or a number in libc's data, may by chance be the address of a lost block. findleaks then
correctly reports the block as reachable or possibly lost. Such a block is excused only in these cases:

- A scan that shares no code with findleaks finds a word that points into the block (pyelftools reads the core, and every aligned word is
compared). The word is in a thread's registers, in a stack above the stack pointer, in the data of a library, in read-only data of the
program, or in a block in use that is not the program's. In addition, `findleaks refs` must list the same address as a reference to the
block. Words in free memory, in an allocator's metadata or below a stack pointer do not count.

- The word is in anonymous memory without blocks, such as the loader maps before malloc exists (tables, thread-local storage), and points to
the inside of the block: the program has no such pointers there.

- The word is half of a pointer that the program has put at an unaligned address (its list says "unaligned").

- Another excused block points to the block.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Optional

import truth
from debuggers import run_cli
from elftools.elf.elffile import ELFFile

MOST = 12
"""The maximum number of blocks that stale words hold, not counting blocks that are reachable from these. The limit is four times as
large for words of 4 bytes, because many more numbers are addresses."""
NT_PRSTATUS, NT_X86_XSTATE = "NT_PRSTATUS", 0x202
SP = {"EM_X86_64": 19, "EM_386": 15, "EM_AARCH64": 31, "EM_ARM": 13, "EM_RISCV": 2, "EM_PPC64": 1, "EM_S390": 17}
"""Index of the stack pointer in pr_reg (each machine's asm/ptrace.h). In struct elf_prstatus (linux/elfcore.h), pr_reg is at offset 112 if
words have 8 bytes, and at 72 if they have 4."""


class Word(NamedTuple):
    """A word of the core whose value is an address inside a block. `address` is None for a word in a thread's saved registers."""

    address: Optional[int]
    value: int


@dataclass
class Segment:
    """A PT_LOAD. `file`: the file that it was mapped from or, for a library's .bss, the file whose last mapping precedes it."""

    start: int
    data: bytes
    writable: bool = True
    file: str = ""
    stack: int = 0
    """The lowest stack pointer in the segment, or 0."""

    @property
    def end(self) -> int:
        return self.start + len(self.data)


@dataclass
class Picture:
    """A core file as the scan reads it. `registers`: the bytes of each note of registers."""

    segments: list[Segment] = field(default_factory=list)
    registers: list[bytes] = field(default_factory=list)
    word: int = 8
    big_endian: bool = False

    def at(self, address: int) -> Optional[Segment]:
        return next((one for one in self.segments if one.start <= address < one.end), None)

    def words(self, low: int, high: int) -> Iterator[Word]:
        """Return all aligned words with low <= value < high."""
        for segment in self.segments:
            whole = self._unpacked(segment.data)
            yield from (Word(segment.start + self.word * place, value) for place, value in enumerate(whole) if low <= value < high)
        for note in self.registers:
            yield from (Word(None, value) for value in self._unpacked(note) if low <= value < high)

    def without_blocks(self, word: Word, starts: Sequence[int]) -> bool:
        """Return whether the word is in anonymous memory, not a stack, in which no block starts. `starts` is in ascending order."""
        segment = self.at(word.address) if word.address is not None else None
        if segment is None or segment.file or segment.stack:
            return False
        after = bisect_left(starts, segment.start)
        return after == len(starts) or starts[after] >= segment.end

    def _unpacked(self, data: bytes) -> array[int]:
        whole = array("Q" if self.word == 8 else "I", data[: len(data) & -self.word])
        if self.big_endian:
            whole.byteswap()
        return whole


def explain(
    verdict: truth.Verdict, records: Sequence[truth.Record], blocks: Sequence[Mapping[str, Any]], core: Path, own: Sequence[str]
) -> truth.Verdict:
    """Return the verdict without the blocks that stale words explain. `own`: names of the files whose data the program under test
    writes."""
    held = {record.address: record for record, _ in verdict.held}
    if not held:
        return verdict
    picture = read(core)
    pointing: dict[int, list[Word]] = {address: [] for address in held}
    for word in picture.words(min(held), max(record.end for record in held.values())):
        for record in held.values():
            if record.address <= word.value < max(record.end, record.address + 1):
                pointing[record.address].append(word)
    foreign = _foreign_blocks(records, blocks)
    starts = sorted({*(record.address for record in records), *(int(block["address"], 16) for block in blocks)})
    odd = {record.address for record in records if record.category == "unaligned"}
    excused = set()
    for address, words in pointing.items():
        stale = [
            word
            for word in words
            if is_foreign(word, picture, foreign, own)
            or is_half(word, picture, odd)
            or (word.value != address and picture.without_blocks(word, starts))
        ]
        if stale and _named_by_refs(address, stale, core):
            excused.add(address)
    if len(excused) > MOST * (1 if picture.word == 8 else 4):
        return verdict
    grown = True
    while grown:
        more = {
            address
            for address in held.keys() - excused
            if any(
                word.address is not None and held[one].address <= word.address < held[one].end
                for word in pointing[address]
                for one in excused
            )
        }
        grown = bool(more)
        excused |= more
    return verdict.without(excused)


def read(core: Path) -> Picture:
    """Read a core. Raises elftools' ELFError if the file is not one."""
    picture, pointers, mapped = Picture(), [], []
    with core.open("rb") as file:
        elf = ELFFile(file)
        picture.word, picture.big_endian = elf.elfclass // 8, not elf.little_endian
        at = {4: 72, 8: 112}[picture.word] + picture.word * SP[elf["e_machine"]]
        for segment in elf.iter_segments():
            if segment["p_type"] == "PT_LOAD" and segment["p_filesz"]:
                picture.segments.append(Segment(segment["p_vaddr"], segment.data(), bool(segment["p_flags"] & 2)))
            elif segment["p_type"] == "PT_NOTE":
                for note in segment.iter_notes():
                    if note["n_type"] == "NT_FILE":
                        names = [name.decode(errors="replace") for name in note["n_desc"]["filename"]]
                        entries = note["n_desc"]["Elf_Nt_File_Entry"]
                        mapped += [(e["vm_start"], e["vm_end"], name) for e, name in zip(entries, names)]
                    elif note["n_type"] in (NT_PRSTATUS, NT_X86_XSTATE):
                        picture.registers.append(note["n_descdata"])
                        if note["n_type"] == NT_PRSTATUS:
                            order = "little" if elf.little_endian else "big"
                            pointers.append(int.from_bytes(note["n_descdata"][at : at + picture.word], order))
    ends = {end: name for _, end, name in mapped}
    for one in picture.segments:
        one.file = next((name for start, end, name in mapped if start <= one.start < end), ends.get(one.start, ""))
        one.stack = min((pointer for pointer in pointers if one.start <= pointer < one.end), default=0)
    return picture


def _foreign_blocks(records: Sequence[truth.Record], blocks: Sequence[Mapping[str, Any]]) -> list[range]:
    """Return the blocks in use that are referenced and that the program does not list."""
    listed = {record.address for record in records}
    found = ((int(block["address"], 16), block) for block in blocks if block["state"] == "in-use" and block["kind"] == "reachable")
    return [range(address, address + block["size"]) for address, block in found if address not in listed]


def is_foreign(word: Word, picture: Picture, foreign: Sequence[range], own: Sequence[str]) -> bool:
    if word.address is None:
        return True
    segment = picture.at(word.address)
    assert segment is not None
    if segment.stack:
        return word.address >= segment.stack
    if any(word.address in block for block in foreign):
        return True  # before files are checked: an allocator's memory may follow a file's last mapping, as .bss does
    return bool(segment.file) and (Path(segment.file).name not in own or not segment.writable)


def is_half(word: Word, picture: Picture, odd: Collection[int]) -> bool:
    """Return whether one of these pointers begins in the middle of the word, or ends there."""
    segment = picture.at(word.address) if word.address is not None else None
    if segment is None or word.address is None:
        return False
    middle = word.address - segment.start + picture.word // 2
    order: Literal["little", "big"] = "big" if picture.big_endian else "little"
    return any(int.from_bytes(segment.data[at : at + picture.word], order) in odd for at in (middle - picture.word, middle) if at >= 0)


def _named_by_refs(block: int, words: Sequence[Word], core: Path) -> bool:
    """Return whether `refs` lists one of these words as a reference to the block."""
    done = run_cli("refs", "--json", "--limit", "0", hex(block), str(core), check=True)
    live = [one for one in json.loads(done.stdout)["references"] if one["live"]]
    named = {(one.get("address"), int(one["value"], 16)) for one in live}
    in_registers = {int(one["value"], 16) for one in live if "register" in one}
    return any(word.value in in_registers if word.address is None else (hex(word.address), word.value) in named for word in words)
