"""Find the modules of a minidump. They are found by the ELF headers in memory, or by the module
list and the files that it names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Optional

from findleaks.target import elf
from findleaks.target.arch import Arch
from findleaks.target.base import Module, Region
from findleaks.target.layout import VDSO
from findleaks.target.minidump.records import ListedModule
from findleaks.target.module_files import ModuleFiles
from findleaks.target.modules import FileSource, Image, find_unnamed_files, headers, images, mapped_files
from findleaks.target.ranges import region_at

_VDSO_NAMES = ("linux-gate", "linux-vdso", "[vdso]")  # Breakpad's, Crashpad's, LLDB's


def find_images(
    arch: Arch,
    read: Callable[[int, int], bytes],
    listed: Sequence[ListedModule],
    regions: Sequence[Region],
    memory: Sequence[Region],
    entry: int,
    search: ModuleFiles,
) -> tuple[list[Image], dict[int, Optional[FileSource]]]:
    """Return the modules, sorted and disjoint, and their files by start.
    `regions` are the mappings of the dump ([] if it has none), `memory` is the memory in the dump,
    `entry` an address in the program, or 0."""
    mappings = mapped_files(regions) if regions else find_unnamed_files(read, ((part.start, part.end, part.size >= 64) for part in memory))
    paths = {one.start: one.path for one in listed}
    in_memory = images(read, mappings, arch.machine, arch.page)
    known = [one._replace(module=one.module._replace(path=one.module.path or paths.get(one.module.start, ""))) for one in in_memory]
    modules = [one.module for one in known]
    ends = {region.name: region.end for region in regions}  # end of the last region of each name
    known += [_bare(one, region_at(regions, one.start), ends) for one in listed if region_at(modules, one.start) is None]
    known.sort(key=lambda one: one.module.start)
    kept: list[Image] = []
    files: dict[int, Optional[FileSource]] = {}
    for index, one in enumerate(known):
        module = one.module
        if kept and module.start < kept[-1].module.end:
            continue
        file = None
        if module.path != VDSO:
            is_main = entry in range(module.start, module.end) if entry else not index
            file = search.find(one, module, is_main)
        if file is not None and one.head is None:
            one = _by_file(arch, one, file)
        if index + 1 < len(known) and one.module.end > known[index + 1].module.start:
            one = one._replace(module=one.module._replace(end=known[index + 1].module.start))
        if one.module.start < one.module.end:
            kept.append(one)
            files[module.start] = file
    return kept, files


def _bare(one: ListedModule, first: Optional[Region], ends: Mapping[str, int]) -> Image:
    """Build a module from its entry in the module list only. `first` is the mapping that it begins
    in.
    The module ends at the end of the mappings of its file (`ends`, by name), because the size that
    LLDB lists covers only some sections."""
    path, end = one.path, one.start + max(one.size, 1)
    if path.startswith(_VDSO_NAMES):
        path = VDSO
    if first is not None and first.name:
        path = first.name
        end = ends[path]
    return Image(Module(path, one.start, one.start, end, one.build_id), None, (), b"")


def _by_file(arch: Arch, one: Image, file: FileSource) -> Image:
    """Return the module with the headers of its file, which determine its bias and its end."""
    view = file.view()
    found = headers(lambda at, size: bytes(view[at : at + size]), 0, len(view))
    loads = [s for s in found[1] if s.type == elf.PT_LOAD and s.memsz] if found is not None else []
    if found is None or not loads:
        return one
    page, module = arch.page, one.module
    bias = module.start - min(s.vaddr for s in loads) // page * page
    end = max(-(-(s.vaddr + s.memsz) // page) * page for s in loads) + bias
    if not module.start < end < 1 << 64:
        return one
    return Image(module._replace(bias=bias, end=end), found[0], found[1], found[2])
