"""Read ELF files and ELF images in memory: headers, notes, build-ids, symbol tables.

pyelftools is not used here; it reads debug information (debuginfo) and checks this module in tests:

- Every command reads ELF, and must need neither a library nor its import time of 45 ms.
- pyelftools finds symbols and build-ids by section headers, which images in memory lack. It is
  slower: 126 ms instead of 7 ms for the symbols of a process, and 1.8 s instead of 0.1 s for the
  60,000 segments of a core.
- For hostile input, this module raises one exception class, pyelftools nine.

Layouts: System V gABI chapters 4 and 5; both classes and byte orders. All input may be hostile:
sizes are clipped to the data, and no loop runs longer than the data."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Optional, Union

from findleaks.errors import TargetError, UnreadableMemory
from findleaks.value_classes import NamedTuple

Buffer = Union[bytes, bytearray, memoryview]

ET_REL, ET_EXEC, ET_DYN, ET_CORE = 1, 2, 3, 4
PT_LOAD, PT_DYNAMIC, PT_NOTE, PT_TLS, PT_GNU_EH_FRAME = 1, 2, 4, 7, 0x6474E550
PT_ARM_EXIDX = 0x70000001
PF_X, PF_W, PF_R = 1, 2, 4
PN_XNUM = 0xFFFF
SHT_SYMTAB, SHT_NOTE, SHT_NOBITS, SHT_DYNSYM = 2, 7, 8, 11
NT_GNU_BUILD_ID = 3
DT_HASH, DT_STRTAB, DT_SYMTAB, DT_STRSZ, DT_SONAME, DT_GNU_HASH = 4, 5, 6, 10, 14, 0x6FFFFEF5
MAX_SYMBOLS = 1 << 22  # most dynamic symbols: a corrupt hash table may claim more
# Most program headers; Linux limits mappings to 2^16, some distributions to 2^20
MAX_SEGMENTS = 1 << 21
MAX_NOTES = 1 << 22  # most notes; a process has at most 2^22 threads
# Most bytes of an image's string table: a corrupt DT_STRSZ may claim gigabytes
MAX_STRINGS = 1 << 28

_MACHINES = {3: "i386", 8: "MIPS", 20: "PowerPC", 21: "PowerPC64", 22: "s390", 40: "ARM", 62: "x86-64", 183: "AArch64", 243: "RISC-V"}
_MACHINES.update({2: "SPARC", 15: "PA-RISC", 42: "SuperH", 43: "SPARC64", 50: "IA-64", 94: "Xtensa", 243: "RISC-V", 258: "LoongArch"})


class ElfError(TargetError):
    """Not an ELF image, or an image with invalid headers."""


class Header(NamedTuple):
    bits: int  # 32 | 64
    byteorder: str  # "little" | "big"
    type: int
    machine: int
    entry: int
    phoff: int
    shoff: int
    phentsize: int
    phnum: int  # as in the file; PN_XNUM: the count is in section 0
    shentsize: int
    shnum: int
    shstrndx: int

    @property
    def prefix(self) -> str:
        """Prefix of struct formats for this byte order."""
        return "<" if self.byteorder == "little" else ">"

    @property
    def machine_name(self) -> str:
        return _MACHINES.get(self.machine, f"machine {self.machine}") + ("" if self.byteorder == "little" else ", big-endian")


class Segment(NamedTuple):
    type: int
    flags: int
    offset: int
    vaddr: int
    filesz: int
    memsz: int
    align: int


class Section(NamedTuple):
    name: str
    type: int
    flags: int
    addr: int
    offset: int
    size: int
    link: int
    info: int
    entsize: int


class Note(NamedTuple):
    name: bytes
    type: int
    desc: memoryview


class Table(NamedTuple):
    """A symbol table: complete Elf_Sym entries of format `form` in `symbols`, and the string
    table."""

    symbols: bytes
    strings: bytes
    form: str  # struct format of one entry
    wide: bool  # 64-bit

    def fields(self, entry: tuple[int, ...]) -> tuple[int, int, int, int, int]:
        """Return st_name, st_info, st_shndx, st_value and st_size of an unpacked entry."""
        if self.wide:
            name, info, _, section, value, size = entry
        else:
            name, value, size, info, _, section = entry
        return name, info, section, value, size

    def find_named(self, names: Iterable[str]) -> Iterator[tuple[str, tuple[int, int, int, int, int]]]:
        """Yield the entries that have one of these names: the name, and the fields of the entry."""
        # String tables share the ends of names: a name may begin inside another one.
        places = {at: name for name in names for at in occurrences(self.strings, name.encode() + b"\0")}
        if places:
            for entry in struct.iter_unpack(self.form, self.symbols):
                if entry[0] in places:
                    yield places[entry[0]], self.fields(entry)


def header(data: Buffer) -> Header:
    """Decode the ELF header at the start of `data`.
    Raises ElfError."""
    if len(data) < 16 or bytes(data[:4]) != b"\x7fELF":
        raise ElfError("not an ELF file")
    bits = {1: 32, 2: 64}.get(data[4])
    order = {1: "little", 2: "big"}.get(data[5])
    if bits is None or order is None:
        raise ElfError("ELF header is corrupt (class or byte order)")
    form = ("<" if order == "little" else ">") + ("HHIQQQIHHHHHH" if bits == 64 else "HHIIIIIHHHHHH")
    if len(data) < 16 + struct.calcsize(form):
        raise ElfError("ELF header is cut off")
    kind, machine, _, entry, phoff, shoff, _, _, phentsize, phnum, shentsize, shnum, shstrndx = struct.unpack_from(form, data, 16)
    return Header(bits, order, kind, machine, entry, phoff, shoff, phentsize, phnum, shentsize, shnum, shstrndx)


def _rows(data: Buffer, offset: int, count: int, entsize: int, form: str) -> Iterator[tuple[int, ...]]:
    """Unpack structures of `form`, one every `entsize` bytes from `offset`: at most `count`."""
    size = struct.calcsize(form)
    if entsize < size or offset >= len(data):
        return iter(())
    count = max(0, min(count, (len(data) - offset) // entsize))
    if entsize > size:
        form += f"{entsize - size}x"
    return struct.iter_unpack(form, memoryview(data)[offset : offset + count * entsize])


def segments(data: Buffer, head: Header, nonzero: Optional[Callable[[int, int], Iterable[tuple[int, int]]]] = None) -> list[Segment]:
    """Return the program headers in the data, without PT_NULL. If there are more than 65,534 of
    them (PN_XNUM), their number is sh_info of section 0. `nonzero` returns the parts of a file
    range that are not holes. It is needed because a hostile count may claim gigabytes of headers in
    a hole."""
    count = head.phnum
    if count == PN_XNUM:
        first = next(_rows(data, head.shoff, 1, max(head.shentsize, 1), head.prefix + _section_form(head)), None)
        if first is not None:
            count = first[7]
    wide, size = head.bits == 64, head.phentsize
    form = head.prefix + ("IIQQQQQQ" if wide else "IIIIIIII")
    end = min(head.phoff + count * size, len(data))
    found: list[Segment] = []
    reached = 0
    for low, high in nonzero(head.phoff, end) if nonzero and size else [(head.phoff, end)]:
        number, reached = max((low - head.phoff) // max(size, 1), reached), -(-(high - head.phoff) // max(size, 1))
        for row in _rows(data, head.phoff + number * size, reached - number, size, form):
            if row[0] == 0:
                continue
            if wide:
                kind, flags, offset, vaddr, _, filesz, memsz, align = row
            else:
                kind, offset, vaddr, _, filesz, memsz, flags, align = row
            found.append(Segment(kind, flags, offset, vaddr, filesz, memsz, align))
            if len(found) == MAX_SEGMENTS:
                return found
    return found


def _section_form(head: Header) -> str:
    return "IIQQQQIIQQ" if head.bits == 64 else "IIIIIIIIII"


def sections(data: Buffer, head: Header) -> list[Section]:
    """Return the section headers in the data; [] for a stripped or memory-only image."""
    if not head.shoff or not head.shentsize:
        return []
    form = head.prefix + _section_form(head)
    count, names = head.shnum, head.shstrndx
    first = next(_rows(data, head.shoff, 1, head.shentsize, form), None)
    if first is None:
        return []
    if count == 0:
        count = first[5]
    if names == 0xFFFF:
        names = first[6]
    rows = list(_rows(data, head.shoff, count, head.shentsize, form))
    strings = b""
    if names < len(rows):
        strings = bytes(data[rows[names][4] : rows[names][4] + rows[names][5]])
    return [Section(text(strings, r[0]), r[1], r[2], r[3], r[4], r[5], r[6], r[7], r[9]) for r in rows]


def text(strings: Buffer, offset: int, most: int = 1 << 16) -> str:
    """Return the NUL-terminated string at `offset` of a string table; "" if the table has no such
    offset."""
    if offset >= len(strings):
        return ""
    raw = bytes(strings[offset : offset + 256])
    end = raw.find(b"\0")
    if end < 0 and len(raw) == 256:
        raw = bytes(strings[offset : offset + most])
        end = raw.find(b"\0")
    return (raw if end < 0 else raw[:end]).decode("utf-8", "surrogateescape")


def occurrences(data: bytes, wanted: bytes) -> Iterator[int]:
    """Yield the offsets of `wanted` in `data`, ascending; occurrences may overlap."""
    at = data.find(wanted)
    while at >= 0:
        yield at
        at = data.find(wanted, at + 1)


def notes(data: Buffer, head: Header, align: int = 4) -> Iterator[Note]:
    """Yield the notes in the bytes of a PT_NOTE segment. Stops at a note whose sizes do not fit, or
    whose header is all zeros (padding, or a hole)."""
    view = memoryview(data)
    step = 8 if align == 8 else 4
    form = struct.Struct(head.prefix + "III")
    at = 0
    while at + 12 <= len(view):
        namesz, descsz, kind = form.unpack_from(view, at)
        if not namesz and not descsz and not kind:
            return
        desc = at + 12 + namesz
        desc += -desc % step
        if namesz > len(view) or desc + descsz > len(view):
            return
        yield Note(bytes(view[at + 12 : at + 12 + namesz]).rstrip(b"\0"), kind, view[desc : desc + descsz])
        at = desc + descsz
        at += -at % step


def notes_of_core(data: Buffer, head: Header, headers: Sequence[Segment]) -> Iterator[Note]:
    """Yield the notes of a file's PT_NOTE segments, at most MAX_NOTES; skips a segment that
    overlaps an earlier one in the file."""
    left, reached = MAX_NOTES, 0
    for segment in sorted(headers, key=lambda s: s.offset):
        if segment.offset >= reached and segment.filesz:
            reached = segment.offset + segment.filesz
            for note in notes(memoryview(data)[segment.offset : reached], head, segment.align):
                if not left:
                    return
                left -= 1
                yield note


def build_id(read: Callable[[int, int], Buffer], head: Header, loads: Sequence[Segment], bias: Optional[int]) -> str:
    """Return the GNU build-id of an image as hex, "" if it has none.
    `read(at, size)` reads the image by file offset (`bias` None), or by address (p_vaddr + bias).
    Unreadable notes count as missing."""

    def iterate_notes() -> Iterator[Note]:
        for seg in loads:
            if seg.type == PT_NOTE and seg.filesz:
                try:
                    data = read(seg.offset if bias is None else seg.vaddr + bias, min(seg.filesz, 1 << 16))
                except UnreadableMemory:
                    continue
                yield from notes(data, head, seg.align)

    return _build_id_among(iterate_notes())


def build_id_of_file(data: Buffer) -> str:
    """Return the GNU build-id of a file by its section headers, "" if it has none. Segments are not
    used, because those of a separate debug file describe another file.
    Raises ElfError if this is not an ELF file."""
    head, view = header(data), memoryview(data)
    parts = (view[section.offset : section.offset + section.size] for section in sections(data, head) if section.type == SHT_NOTE)
    return _build_id_among(note for part in parts for note in notes(part, head))


def _build_id_among(found: Iterable[Note]) -> str:
    build_ids = (note.desc.hex() for note in found if note.type == NT_GNU_BUILD_ID and note.name == b"GNU" and 0 < len(note.desc) <= 64)
    return next(build_ids, "")


def symbol_form(head: Header) -> str:
    """Return the struct format of Elf_Sym: name, info, other, shndx, value, size (64-bit), or name,
    value, size, info, other, shndx (32-bit)."""
    return head.prefix + ("IBBHQQ" if head.bits == 64 else "IIIBBH")


def tables_of_file(data: Buffer, head: Header) -> list[Table]:
    """Return .symtab and .dynsym with their string tables, by the section headers."""
    found = []
    rows = sections(data, head)
    form = symbol_form(head)
    size = struct.calcsize(form)
    view = memoryview(data)
    for section in sorted(rows, key=lambda s: s.type):
        if section.type not in (SHT_SYMTAB, SHT_DYNSYM) or section.link >= len(rows) or rows[section.link].type == SHT_NOBITS:
            continue
        strings = rows[section.link]
        symbols = bytes(view[section.offset : section.offset + section.size])
        names = bytes(view[strings.offset : strings.offset + strings.size])
        found.append(Table(symbols[: len(symbols) // size * size], names, form, head.bits == 64))
    return found


def dynamic(read: Callable[[int, int], Buffer], head: Header, loads: Sequence[Segment], bias: int) -> dict[int, int]:
    """Return the first value of each tag in the dynamic section of an image; {} if unreadable."""
    form = head.prefix + ("QQ" if head.bits == 64 else "II")
    for seg in loads:
        if seg.type == PT_DYNAMIC:
            size = min(seg.memsz, 1 << 16) // struct.calcsize(form) * struct.calcsize(form)
            try:
                rows = struct.iter_unpack(form, read(seg.vaddr + bias, size))
            except UnreadableMemory:
                return {}
            tags: dict[int, int] = {}
            for tag, value in rows:
                if tag == 0:
                    break
                tags.setdefault(tag, value)
            return tags
    return {}


def tables_of_image(read: Callable[[int, int], Buffer], head: Header, loads: Sequence[Segment], bias: int) -> list[Table]:
    """Return the dynamic symbol table of an image in memory; [] if unreadable.
    Images have no section headers. The length comes from DT_HASH (nchain), or from the end of the
    last chain of DT_GNU_HASH."""
    tags = dynamic(read, head, loads, bias)
    if DT_SYMTAB not in tags or DT_STRTAB not in tags or DT_STRSZ not in tags:
        return []
    form = symbol_form(head)
    size = struct.calcsize(form)

    def address(tag: int) -> int:
        # ld.so has added the load address to the addresses in the dynamic section, but not in the
        # vDSO, and not on every platform.
        low = min((s.vaddr for s in loads if s.type == PT_LOAD), default=0) + bias
        return tags[tag] if tags[tag] >= low else tags[tag] + bias

    try:
        if DT_HASH in tags:
            count = struct.unpack(head.prefix + "II", read(address(DT_HASH), 8))[1]
        elif DT_GNU_HASH in tags:
            count = _gnu_hash_count(read, head, address(DT_GNU_HASH))
        else:
            return []
        if count > MAX_SYMBOLS:
            return []
        # Limit the size to the image, because many images may claim the same gigabytes.
        end = max((s.vaddr + s.memsz for s in loads if s.type == PT_LOAD), default=0) + bias
        strings = min(tags[DT_STRSZ], MAX_STRINGS, end - address(DT_STRTAB))
        if strings < 0 or address(DT_SYMTAB) + count * size > end:
            return []
        return [Table(bytes(read(address(DT_SYMTAB), count * size)), bytes(read(address(DT_STRTAB), strings)), form, head.bits == 64)]
    except UnreadableMemory:
        return []


def _gnu_hash_count(read: Callable[[int, int], Buffer], head: Header, at: int) -> int:
    """Count the dynamic symbols of a GNU hash table: the last chain ends at an odd hash value."""
    buckets, offset, bloom, _ = struct.unpack(head.prefix + "IIII", read(at, 16))
    if buckets > MAX_SYMBOLS or bloom > MAX_SYMBOLS:
        return 0
    at += 16 + bloom * head.bits // 8
    last = max(struct.unpack(f"{head.prefix}{buckets}I", read(at, 4 * buckets)), default=0)
    if last < offset:
        return int(offset)
    at += 4 * buckets
    step = 16  # words read at once: chains are short, but a corrupt one may span gigabytes of zeros
    while last - offset < MAX_SYMBOLS:
        try:
            values = struct.unpack(f"{head.prefix}{step}I", read(at + 4 * (last - offset), 4 * step))
        except UnreadableMemory:
            if step == 1:
                raise
            step = 1
            continue
        for number, value in enumerate(values, 1):
            if value & 1:
                return int(last) + number
        last += step
        step = min(4 * step, 1 << 14) if step > 1 else 1
    return 0
