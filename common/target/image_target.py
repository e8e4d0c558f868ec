"""Base class of core and process targets: modules with their files and symbols."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import Optional, TypeVar

from findleaks.target import elf
from findleaks.target.base import Module, Piece, Range, Region, Symbol, Target
from findleaks.target.modules import Image, find_symbol_tables
from findleaks.target.ranges import region_at, region_index
from findleaks.target.reader import Source
from findleaks.target.separate import Alternate, SeparateFiles
from findleaks.target.symbols import ModuleSymbols

_MOST_BAD_PAGES = 1024  # unreadable pages in a row after which the rest of a mapping is skipped

_Self = TypeVar("_Self")


class ImageTarget(Target):
    """A target with regions, and with modules whose ELF images and files are known.
    `with` calls `close` at its end. Symbol tables are loaded on first use."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.unread: list[Range] = []  # ascending
        self._sysroot = ""  # folder below which module files are searched
        self._images: Sequence[Image] = []
        self._modules: Sequence[Module] = []  # modules of the images, in the same order
        self._symbols: dict[int, ModuleSymbols] = {}
        self.separate = SeparateFiles()
        self._set_regions([])

    def __enter__(self: _Self) -> _Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- regions

    def _set_regions(self, regions: Sequence[Region]) -> None:
        self._regions = regions
        self._region_starts = [region.start for region in regions]

    def regions(self) -> Sequence[Region]:
        return self._regions

    def _region_at(self, address: int) -> Optional[Region]:
        index = bisect_right(self._region_starts, address) - 1
        return self._regions[index] if index >= 0 and address < self._regions[index].end else None

    def _add_unread(self, start: int, end: int) -> None:
        """Record that [start, end) cannot be read, if it is writable and not recorded yet. Memory
        beyond the end of a mapped file is excluded, because the process could not read it
        either."""
        region = self._region_at(start)
        if region is None or not region.writable:
            return
        end = min(end, self._file_end(region))
        if start >= end:
            return
        at = bisect_right(self.unread, (start, 1 << 65))
        before = self.unread[at - 1] if at else Range(-1, -1)
        if before.end == start:
            self.unread[at - 1 : at] = [Range(before.start, end)]
        elif before.end < start:
            self.unread.insert(at, Range(start, end))

    def _file_end(self, region: Region) -> int:
        """Return the address in a region where the mapped file ends, or the end of the region."""
        return region.end

    def _readable_pieces(self, low: int, high: int, longest: int, read: Callable[[int, int], memoryview]) -> Iterator[Piece]:
        """Yield the parts of [low, high) that `read` can read, at most `longest` bytes each. Skips
        unreadable pages (device memory, pages beyond the end of a file)."""
        bad = 0  # unreadable pages in a row
        while low < high:
            data = read(low, min(longest, high - low))
            if data:
                yield Piece(low, data)
                low += len(data)
                bad = 0
            else:
                bad += 1
                following = high if bad >= _MOST_BAD_PAGES else min((low & -self.arch.page) + self.arch.page, high)
                self._add_unread(low, following)
                low = following

    # -- modules and their files

    def modules(self) -> Sequence[Module]:
        return self._modules

    def images(self) -> Sequence[Image]:
        """The modules with their ELF headers."""
        return self._images

    def _image_of(self, module: Module) -> Optional[Image]:
        index = region_index(self._modules, module.start)
        return self._images[index] if index >= 0 else None

    def _file(self, image: Image) -> Optional[Source]:
        """Return the file that a module was loaded from, if it is proven to match."""
        raise NotImplementedError

    def _separate(self, module: Module, source: Optional[Source]) -> Optional[elf.Buffer]:
        """Return the separate debug file of a module. `source` is the module's own file."""
        place = getattr(source, "place", None)
        return self.separate.of(module, source.view() if source is not None else None, place, self._sysroot)

    def symbol_tables(self, module: Module) -> Sequence[elf.Table]:
        """See Target. Uses the tables of files. If there are none, uses those of the module in
        memory."""
        image = self._image_of(module)
        if image is None:
            return []
        source = self._file(image)
        found = find_symbol_tables(source.view() if source is not None else None, lambda: self._separate(module, source))
        if not found and image.head is not None:
            found = elf.tables_of_image(self.read, image.head, image.segments, module.bias)
        return found

    def debug_data(self, module: Module) -> Sequence[elf.Buffer]:
        image = self._image_of(module)
        if image is None:
            return []
        source = self._file(image)
        own = source.view() if source is not None else None
        return [data for data in (own, self._separate(module, source)) if data is not None]

    def alternate_data(self, module: Module, wanted: Alternate) -> Optional[elf.Buffer]:
        return self.separate.alternate(module, wanted, self._sysroot)

    def split_data(self, module: Module, path: str) -> Optional[elf.Buffer]:
        return self.separate.split(module, path, self._sysroot)

    def add_debug_file(self, module: Module, path: str) -> bool:
        if not self.separate.add(module, path):
            return False
        self._symbols.pop(module.start, None)
        return True

    # -- symbols

    def symbols_of(self, module: Module) -> ModuleSymbols:
        found = self._symbols.get(module.start)
        if found is None:
            found = self._symbols[module.start] = ModuleSymbols(module, self.symbol_tables(module), self.arch.code_bits)
        return found

    def symbol(self, name: str, module: str = "") -> Optional[Symbol]:
        for candidate in self.modules():
            if candidate.path.rsplit("/", 1)[-1].startswith(module):
                found = self.symbols_of(candidate).by_name(name)
                if found is not None:
                    return found
        return None

    def symbols_starting(self, prefix: str) -> list[Symbol]:
        return [symbol for module in self.modules() for symbol in self.symbols_of(module).starting(prefix)]

    def thread_locals(self, module: Module) -> list[Symbol]:
        return self.symbols_of(module).thread_locals()

    def symbolize(self, address: int) -> Optional[Symbol]:
        """See Target. A symbol without a size covers only code. It covers neither data after the
        last function nor memory after `_end`."""
        module = region_at(self.modules(), address)
        found = self.symbols_of(module).by_address(address) if module is not None else None
        if module is not None and found is not None and not found.size and found.address != address:
            region, first = self._region_at(address), self._region_at(module.start)
            # The kernel may have mapped something else into gaps between a file's segments.
            its = region is None or (region.executable and (first is None or region.name == first.name))
            return found if its else None
        return found
