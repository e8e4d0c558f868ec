"""Read the debug information of one file with pyelftools' DWARFInfo, guarded against damaged and
huge files.

pyelftools only decodes single units and entries, at offsets that this module looks up. The searches
of pyelftools are not used, because nothing limits them: to resolve a reference it searches all
units, to find a signature all type units, and it follows DW_AT_sibling, which in a damaged file may
point back. Sources: DWARF 5, 7.5.1 (headers of units), 7.5.3 (entries), 3.1.4 (type units); DWARF
4, 7.5.1.2 (type units in .debug_types)."""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, Optional, TypeVar

from findleaks.debuginfo.elftools_loader import load_elftools
from findleaks.debuginfo.sections import MAX_READS, READS_BETWEEN_POLLS, Meter, Sections, Stream
from findleaks.errors import FindleaksError
from findleaks.target import elf
from findleaks.target.separate import has_debug_info

Progress = Callable[[str, float], None]
"""A progress callback. It is called with (phase, fraction done), and raises Interrupted if the user
asked to stop."""

PHASE = "reading debug information"
# Reads that are allowed for one question, in addition to those that depend on the file's size
MIN_READS = 1 << 12
MAX_UNITS = 1 << 20
MAX_CHILDREN = 1 << 14
MAX_FAILURES = 8  # after this many questions with too many reads, a file is no longer read
MAX_KEPT = 1 << 21  # after this many reads, pyelftools' caches (about 200 MB) are dropped

_USED = ["debug_abbrev", "debug_addr", "debug_aranges", "debug_line", "debug_line_str", "debug_loc", "debug_loclists"]
_USED += ["debug_ranges", "debug_rnglists", "debug_str", "debug_str_offsets"]
_UNUSED = ["debug_frame", "debug_pubnames", "debug_pubtypes", "debug_sup", "debug_types", "eh_frame", "gnu_debugaltlink"]
_LOCAL = ("DW_FORM_ref1", "DW_FORM_ref2", "DW_FORM_ref4", "DW_FORM_ref8", "DW_FORM_ref_udata")
IN_ANOTHER_FILE = ("DW_FORM_GNU_ref_alt", "DW_FORM_ref_sup4", "DW_FORM_ref_sup8")
_UT_TYPE, _UT_SKELETON = 2, 4

Answer = TypeVar("Answer")
DIE = Any  # elftools.dwarf.die.DIE: a debugging information entry
Unit = Any  # elftools.dwarf.compileunit.CompileUnit


def open_dwarf(
    data: elf.Buffer, progress: Progress = lambda phase, part: None, alternate: Optional[elf.Buffer] = None
) -> Optional[DebugFile]:
    """Open the debug information in the file `data`. Returns None if it has none, or if pyelftools
    is missing. `alternate`: the supplementary file (written by dwz) that it refers to."""
    if not has_debug_info(data):
        return None
    module = load_elftools()
    file = DebugFile(data, module, progress, alternate) if module is not None else None
    return file if file is not None and ".debug_info" in file.sections else None


class _Part:
    """A section of units: .debug_info, or .debug_types of DWARF 4."""

    def __init__(self, data: elf.Buffer) -> None:
        self.data = data
        self.starts: array[int] = array("Q")  # offsets of the units
        self.types: dict[int, int] = {}  # offsets of type units by signature
        self.end = 0  # end of the last unit with a valid header
        # Offset of the first unit that may belong to split DWARF
        self.skeleton: Optional[int] = None
        self.info: Any = None  # a DWARFInfo


class DebugFile:
    """The debug information of one file. `sections`: all sections of the file, by name.
    Code that reads the information must be passed to `ask`, which handles the many exception
    classes of pyelftools."""

    def __init__(
        self, data: elf.Buffer, elftools: Any, progress: Progress, alternate: Optional[elf.Buffer] = None, meter: Optional[Meter] = None
    ) -> None:
        self.progress, self._elftools = progress, elftools
        self.head = elf.header(data)
        self.word = self.head.bits // 8
        self.order: Literal["little", "big"] = "little" if self.head.byteorder == "little" else "big"
        self.sections = Sections(data, self.head, lambda: progress(PHASE, 0.0))
        self.elsewhere = ""  # another file that an entry refers to, for a warning
        self._meter = meter or Meter(lambda: progress(PHASE, 0.0))
        # Four reads for each byte are enough for an intact file.
        size = sum(self.sections.size(name) for name in (".debug_info", ".debug_types", ".debug_abbrev"))
        self._most_reads = min(4 * size + MIN_READS, MAX_READS)
        self._failures = self._renewed = 0
        self._asking = False
        self._parts = [self._part(".debug_info", False), self._part(".debug_types", True)]
        self._members: dict[tuple[int, int], tuple[Unit, list[DIE]]] = {}
        self._alternate = DebugFile(alternate, elftools, progress, None, self._meter) if alternate is not None else None
        self._renew()

    @property
    def units(self) -> Sequence[int]:
        """The offsets of the units of .debug_info, ascending."""
        return self._parts[0].starts

    def split(self) -> bool:
        """Whether the file was built with -gsplit-dwarf. Then everything except the addresses is in
        .dwo files."""
        at = self._parts[0].skeleton
        top = self.unit_of(at).get_top_DIE() if at is not None else None
        return top is not None and ("DW_AT_dwo_name" in top.attributes or "DW_AT_GNU_dwo_name" in top.attributes)

    def ask(self, question: Callable[[], Answer], otherwise: Answer) -> Answer:
        """Return the answer of `question`, or `otherwise` if the data are damaged or too many reads
        are needed. Interrupted is not caught. Nested questions count towards the limit of the outer
        question."""
        if self._failures >= MAX_FAILURES:
            return otherwise
        outer, self._asking = self._asking, True
        if not outer:
            self._meter.allow(self._most_reads)
        try:
            return question()
        except FindleaksError:
            raise
        except Exception:  # at least nine classes: KeyError, RecursionError, those of construct…
            stopped = self._meter.stopped
            if stopped is not None and (outer or isinstance(stopped, FindleaksError)):
                raise stopped from None
            self._failures += stopped is not None
            return otherwise
        finally:
            self._asking = outer
            if not outer and self._meter.reads - self._renewed > MAX_KEPT:
                self._renew()

    def _renew(self) -> None:
        """Create a new DWARFInfo for each part, because pyelftools caches everything that it has
        parsed."""
        self._renewed = self._meter.reads
        self._members.clear()
        module = self._elftools.dwarf.dwarfinfo
        given: dict[str, Any] = {f"{name}_sec": None for name in _UNUSED}
        if self._elftools.__version__ < "0.32":
            del given["debug_types_sec"]  # .debug_types is a separate part here
        given.update((f"{name}_sec", self._section(f".{name}")) for name in _USED)
        for part in self._parts:
            units = memoryview(part.data)[: part.end]
            given["debug_info_sec"] = self._descriptor(partial(_same, units), part.end)
            part.info = module.DWARFInfo(module.DwarfConfig(self.order == "little", "", self.word), **given)
        if self._alternate is not None:
            self._alternate._renew()
            for part in self._parts:
                part.info.supplementary_dwarfinfo = self._alternate._parts[0].info

    def _section(self, name: str) -> Any:
        return self._descriptor(partial(self.sections.__getitem__, name), self.sections.size(name)) if name in self.sections else None

    def _descriptor(self, open_data: Callable[[], elf.Buffer], size: int) -> Any:
        descriptor = self._elftools.dwarf.dwarfinfo.DebugSectionDescriptor
        return descriptor(Stream(open_data, size, self._meter), "", 0, size, 0)

    def _part(self, name: str, old_types: bool) -> _Part:
        """Index the headers of a section's units, up to the first invalid one. pyelftools would
        create, and cache, parsers for any version that a header claims."""
        part = _Part(self.sections.get(name, b""))
        data, at = part.data, 0
        while at + 12 <= len(data) and len(part.starts) < MAX_UNITS:
            if len(part.starts) % READS_BETWEEN_POLLS == 0:
                self.progress(PHASE, at / len(data))
            wide = 8 if data[at : at + 4] == b"\xff\xff\xff\xff" else 4
            head = at + (12 if wide == 8 else 4)
            end = head + self.number(data, head - wide, wide)
            version, kind = self.number(data, head, 2), 0
            if version == 5 and not old_types:
                kind, address = self.number(data, head + 2, 1), self.number(data, head + 3, 1)
            else:
                address = self.number(data, head + 2 + wide, 1)
            if not head < end <= len(data) or not 2 <= version <= 5 or address not in (4, 8):
                break
            if old_types or kind == _UT_TYPE:
                part.types[self.number(data, head + (3 if old_types else 4) + wide, 8)] = at
            if part.skeleton is None and (kind == _UT_SKELETON or (version < 5 and ".debug_addr" in self.sections)):
                part.skeleton = at
            part.starts.append(at)
            part.end = at = end
        return part

    def number(self, data: elf.Buffer, at: int, size: int) -> int:
        """Decode an unsigned number in the file's byte order. Bytes after the end of `data` are
        ignored."""
        return int.from_bytes(data[at : at + size], self.order)

    def unit_of(self, offset: int) -> Unit:
        """Return the unit that contains `offset` of .debug_info. Raises LookupError if there is
        none."""
        return self._unit(self._parts[0], offset)

    def _unit(self, part: _Part, offset: int) -> Unit:
        index = bisect_right(part.starts, offset) - 1
        if index < 0 or offset >= part.end:
            raise LookupError(offset)
        unit = part.info.get_CU_at(part.starts[index])
        if part is self._parts[1] and not unit.has_top_DIE():
            # pyelftools parses this unit like one of .debug_info, whose header does not have the
            # last two fields.
            unit.cu_die_offset = part.starts[index] + (23 if unit.dwarf_format() == 32 else 39)
        unit.get_top_DIE()
        return unit

    def entry(self, unit: Unit, offset: int, end: Optional[int] = None) -> DIE:
        """Parse the entry at `offset` of the unit's section, reading no further than `end`.
        pyelftools does not cache it. Raises ValueError if `offset` is outside the unit."""
        if not unit.cu_die_offset <= offset < unit.cu_offset + unit.size:
            raise ValueError(offset)
        top = unit.get_top_DIE()
        return type(top)(unit, top.stream if end is None else top.stream.until(end), offset)

    def walk(self, unit: Unit, at: int, past: Optional[int] = None) -> Iterator[DIE]:
        """Yield the unit's entries in order from `at` on, including the null entries that end
        siblings.
        If entries refer to their siblings (DW_AT_sibling), descendants that end before `past` are
        skipped; if `past` is None, all are."""
        while at < unit.cu_offset + unit.size:
            die = self.entry(unit, at)
            yield die
            at = after = at + die.size
            sibling = die.attributes.get("DW_AT_sibling")
            if sibling is not None and sibling.form in _LOCAL:
                target = unit.cu_offset + sibling.raw_value
                at = target if target > after and (past is None or target <= past) else after

    def children(self, parent: DIE) -> list[DIE]:
        """Return an entry's children, at most MAX_CHILDREN. They are cached, because lookups of
        members repeat them."""
        key = id(parent.cu), parent.offset
        if key not in self._members:
            # The value keeps the unit alive, so that its id stays unique.
            self._members[key] = parent.cu, list(itertools.islice(self._children(parent), MAX_CHILDREN))
        return self._members[key][1]

    def _children(self, parent: DIE) -> Iterator[DIE]:
        depth = 0
        for die in self.walk(parent.cu, parent.offset + parent.size) if parent.has_children else ():
            if die.is_null():
                depth -= 1
                if depth < 0:
                    return
                continue
            if depth == 0:
                yield die
            depth += bool(die.has_children) and "DW_AT_sibling" not in die.attributes

    def follow(self, die: DIE, attribute: str) -> Optional[DIE]:
        """Return the entry that an attribute refers to. Returns None if the attribute is missing,
        or if the entry is in another file, which is then recorded in `elsewhere`."""
        value = die.attributes.get(attribute)
        if value is None:
            return None
        if value.form in _LOCAL:
            return die.cu.get_DIE_from_refaddr(die.cu.cu_offset + value.raw_value)
        if value.form == "DW_FORM_ref_addr":
            return self.owner(die).unit_of(value.raw_value).get_DIE_from_refaddr(value.raw_value)
        if value.form == "DW_FORM_ref_sig8":
            return self._by_signature(value.raw_value)
        if value.form in IN_ANOTHER_FILE and self._alternate is not None:
            return self._alternate.unit_of(value.raw_value).get_DIE_from_refaddr(value.raw_value)
        if value.form in IN_ANOTHER_FILE:
            self.elsewhere = "in a supplementary file (.gnu_debugaltlink)"
        return None

    def owner(self, die: DIE) -> DebugFile:
        """Return the file that contains an entry: this file or its supplementary file."""
        other = self._alternate
        return other if other is not None and die.cu.dwarfinfo is other._parts[0].info else self

    def _by_signature(self, signature: int) -> DIE:
        part = next(part for part in self._parts if signature in part.types)
        start = part.types[signature]
        unit = self._unit(part, start)
        wide = 4 if unit.dwarf_format() == 32 else 8
        # The last field of the header is the offset of the type's entry, relative to the start of
        # the header.
        return unit.get_DIE_from_refaddr(start + self.number(part.data, unit.cu_die_offset - wide, wide))


def text(die: DIE, attribute: str) -> str:
    """Return an attribute's string; "" if it is missing, or in another file (pyelftools then gives
    an offset)."""
    value = die.attributes.get(attribute)
    return value.value.decode("utf-8", "replace") if value is not None and isinstance(value.value, bytes) else ""


def number(die: DIE, attribute: str) -> Optional[int]:
    """Return an attribute's number; None if it is missing, or an expression."""
    value = die.attributes.get(attribute)
    return value.value if value is not None and isinstance(value.value, int) else None


def _same(data: elf.Buffer) -> elf.Buffer:
    return data
