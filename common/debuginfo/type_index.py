"""The types of a target's modules, from debug information. They are read once for each build-id."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Optional

from findleaks.debuginfo.local_variables import Local, LocalVariables
from findleaks.debuginfo.lost_locations import add_lost_variables, has_lost_locations
from findleaks.debuginfo.program_types import ProgramTypes, merge_columns, only_table, place_types
from findleaks.debuginfo.sources import Sources
from findleaks.debuginfo.type_cache import TypeCache
from findleaks.debuginfo.type_sources import TypeSources
from findleaks.debuginfo.type_table import TypeTable
from findleaks.engine.contract import Engine
from findleaks.engine.dwarf_sources import Source, TypeReader
from findleaks.errors import TargetError
from findleaks.target import elf
from findleaks.target.base import Module, Target
from findleaks.target.separate import alternate_link, has_debug_info, is_c_library

PHASE = "reading types"
BYTES_A_CALL, LOOKUPS_A_CALL = 1 << 20, 1 << 13  # about 20 ms in the C engine
# Bytes of .debug_info that are read without the user's request: about 0.7 s
MOST_UNASKED = 64 << 20
SPLIT_UNIT = 1 << 16  # assumed size in bytes of a .dwo file, or of a unit of a package
LEAST_CACHED = 1 << 14  # fewest types in a merged table that is cached; fewer are merged in 0.05 s
# Maximum size of .debug_info for local variables, because its units are read one by one
MOST_FOR_LOCALS = 32 << 20
Progress = Callable[[str, float], None]
"""A progress callback. It is called with (phase, fraction done), and raises Interrupted if the user
asked to stop."""


class TypeIndex:
    """The types of each module. `warnings`: parts that were not read, one line each."""

    def __init__(self, target: Target, engine: Engine, sources: Sources, progress: Progress, cache: Optional[TypeCache] = None) -> None:
        self._target, self._engine, self._sources, self._progress = target, engine, sources, progress
        self._cache = cache or TypeCache()
        self._tables: dict[int, Optional[TypeTable]] = {}
        self._opened: dict[int, Optional[TypeSources]] = {}
        self._locals: dict[int, LocalVariables] = {}
        self._program: list[Optional[ProgramTypes]] = []  # empty until `program` was called
        self._left: Optional[int] = None  # bytes of debug information that may be read; None: all
        self.warnings: list[str] = []

    def of(self, module: Module) -> Optional[TypeTable]:
        """Return the types of a module; None if it has no debug information."""
        if module.start not in self._tables:
            self._tables[module.start] = self._find(module)
        return self._tables[module.start]

    def program(self, read_all: bool = True) -> Optional[ProgramTypes]:
        """Return the types of all modules as one table; None if no module except the C library has
        debug information.

        Without `read_all`, at most MOST_UNASKED bytes of debug information that is not in the cache
        are read, and only the debug file of the program itself is downloaded. Later calls return
        the result of the first call."""
        if not self._program:
            self._left = None if read_all else MOST_UNASKED
            modules = sorted((one for one in self._target.modules() if self.sources_of(one) is not None), key=lambda one: one.start)
            self._program.append(self._load_program(modules) or self._merge_program(modules))
        return self._program[0]

    def _load_program(self, modules: Sequence[Module]) -> Optional[ProgramTypes]:
        """Return the types of modules from the cache; None if the cache does not have the types of
        all modules."""
        names = [self._name(module) for module in modules]
        if not all(name and self._cache.keep(name) for name in names) or all(map(is_c_library, modules)):
            return None
        columns = self._cache.load(_merged_name(names))
        return place_types(modules, columns) if columns is not None else None

    def _merge_program(self, modules: Sequence[Module]) -> Optional[ProgramTypes]:
        """Return the types of all modules whose types can be read; None if the C
        library is the only such module, or if there is no such module."""
        pairs = [(module, table) for module in modules if (table := self.of(module)) is not None]
        if all(is_c_library(module) for module, _ in pairs):
            return None
        if len(pairs) == 1:
            return only_table(*pairs[0])
        columns = merge_columns([table for _, table in pairs], self._engine.type_reader(), lambda part: self._progress(PHASE, part))
        names = [self._name(module) for module, _ in pairs]
        if all(names) and sum(len(table) for _, table in pairs) >= LEAST_CACHED:
            self._cache.store(_merged_name(names), columns)
        return place_types([module for module, _ in pairs], columns)

    def locals(self, module: Module, address: int) -> Sequence[Local]:
        """Return the local variables and parameters that are visible at an address of a module's
        file. Their types are numbers of the module's own table."""
        known = self._local_variables(module)
        return known.at(address) if known is not None else ()

    def manager_types(self, module: Module, address: int) -> Sequence[int]:
        """Return the types that name the value of a type-erased wrapper (types/erasure.py).
        `address`: the address of the wrapper's manager function in the module's file. The types are
        numbers of the module's own table."""
        known = self._local_variables(module)
        return known.manager_types(address) if known is not None else ()

    def _local_variables(self, module: Module) -> Optional[LocalVariables]:
        table, sources = self.of(module), self.sources_of(module)
        if module.start not in self._locals and table is not None and sources is not None:
            self._locals[module.start] = LocalVariables(sources, table)
        return self._locals.get(module.start)

    def has_quick_locals(self, module: Module) -> bool:
        """Whether `locals` takes little time for a module, because its debug information is
        small."""
        sources = self.sources_of(module)
        return sources is not None and sources.sections.size(".debug_info") <= MOST_FOR_LOCALS and self.of(module) is not None

    def _find(self, module: Module) -> Optional[TypeTable]:
        opened = self.sources_of(module)
        if opened is None:
            return None
        name = self._name(module)
        columns = self._cache.load(name) if name else None
        if columns is None and not self._may_read(module, opened):
            return None
        if columns is None:
            reader = self._engine.type_reader()
            read_types(reader, opened, lambda part: self._progress(PHASE, part))
            columns = reader.columns()
            self._warn(module, opened, reader)
            is_whole = not opened.missing
            if has_lost_locations(opened):
                more = add_lost_variables(opened, columns)
                columns, is_whole = more or columns, is_whole and more is not None
                if more is None:
                    self._warn_of_lost_variables(module)
            if name and is_whole:
                self._cache.store(name, columns)
        return TypeTable.of(opened.word, columns)

    def _name(self, module: Module) -> str:
        """Return the name of a module's table in the cache; "" if it has none."""
        opened = self.sources_of(module)
        if opened is None or not module.build_id:
            return ""
        return f"{module.build_id}-{zlib.crc32(repr(opened.signature()).encode()):08x}"

    def _may_read(self, module: Module, opened: TypeSources) -> bool:
        """Whether the debug information of a module may be read. If it is too large, a warning is
        added."""
        if self._left is None:
            return True
        size = opened.sections.size(".debug_info") + SPLIT_UNIT * len(opened.skeletons)
        if size <= self._left:
            self._left -= size
            return True
        what = f"{size >> 20:,} MiB of debug information of {os.path.basename(module.path)}"
        self.warnings.append(
            f"{what} were not read, so types of blocks may be missing; --debug-types reads them (slow only the first time)"
        )
        return False

    def sources_of(self, module: Module) -> Optional[TypeSources]:
        """Return the sections with a module's types; None if there are none."""
        if module.start not in self._opened:
            self._opened[module.start] = self._open(module)
        return self._opened[module.start]

    def _open(self, module: Module) -> Optional[TypeSources]:
        is_wanted = self._left is None or module == self._target.modules()[0]
        if not module.path.startswith("/") or not self._sources.has_debug_file(module, is_wanted):
            return None
        data = next((one for one in self._target.debug_data(module) if has_debug_info(one)), None)
        if data is None:
            return None
        link = alternate_link(data)
        alternate = self._target.alternate_data(module, link) if link is not None else None

        def open_split(path: str) -> Optional[elf.Buffer]:
            return self._target.split_data(module, path)

        try:
            return TypeSources(data, alternate, open_split, lambda: self._progress(PHASE, 0.0))
        except TargetError:
            return None

    def _warn(self, module: Module, opened: TypeSources, reader: TypeReader) -> None:
        name = module.path.rsplit("/", 1)[-1]
        if opened.missing:
            self.warnings.append(f"types of {name} are incomplete: {opened.missing} of {len(opened.skeletons)} .dwo files were not found")
        if reader.incomplete:
            self.warnings.append(f"types of {name} are incomplete: its debug information is damaged, or of an unknown form")

    def _warn_of_lost_variables(self, module: Module) -> None:
        name = os.path.basename(module.path)
        why = "gcc's debug information has no addresses of variables with -flto and -gsplit-dwarf, and there is no symbol table"
        self.warnings.append(f"types of {name} are incomplete: {why}; compile without -gsplit-dwarf")


def _merged_name(names: Sequence[str]) -> str:
    return f"merged-{blake2b(' '.join(names).encode(), digest_size=16).hexdigest()}"


def read_types(reader: TypeReader, sources: TypeSources, progress: Callable[[float], None]) -> None:
    """Read all sources, and merge their types."""
    main = sources.main()
    total = sum(len(one.info) for one in main)
    done = 0
    for one in main:
        for at in _read(reader, one):
            progress(0.7 * (done + at) / max(total, 1))
        done += len(one.info)
    _find_origins(reader, progress)
    for number, group in enumerate(sources.split(total)):
        for one in group:
            for _ in _read(reader, one):
                progress(0.7 * number / len(sources.skeletons))
        _find_origins(reader, progress)
    while True:
        part = reader.merge()
        progress(0.75 + part / 4)
        if part == 1.0:
            return


def _read(reader: TypeReader, source: Source) -> Iterator[int]:
    reader.add(source)
    while True:
        at = reader.read(BYTES_A_CALL)
        if at < 0:
            return
        yield at


def _find_origins(reader: TypeReader, progress: Callable[[float], None]) -> None:
    while reader.find_origins(LOOKUPS_A_CALL):
        progress(0.7)
