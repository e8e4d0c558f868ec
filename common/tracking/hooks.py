"""Selects the functions of a process's allocators to hook, and builds the code of the hooks."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from findleaks.errors import TargetError
from findleaks.injection.stub.free_range import MAX_DISTANCE
from findleaks.injection.stub.relocate import Patch, Refused, relocate_code
from findleaks.injection.stub.table import EXACT, OWN, pack
from findleaks.target.base import Module, Target
from findleaks.target.elf import Table
from findleaks.tracking.generated import track as trackcode

_NOTHROW = "RKSt9nothrow_t"
_NEW = ("_Znwm", "_Znam", "_ZnwmSt11align_val_t", "_ZnamSt11align_val_t")
_DELETE = tuple(
    f"_Zd{what}Pv{size}{align}{nothrow}"
    for what in "la"
    for size in ("", "m")
    for align in ("", "St11align_val_t")
    for nothrow in ("", _NOTHROW)
    if not (size and nothrow)
)
FUNCTIONS: Mapping[str, Sequence[str]] = {
    "first": ("malloc", "valloc", "pvalloc", "mallocx", *(name + _NOTHROW for name in _NEW)),
    "second": ("aligned_alloc", "memalign"),
    "product": ("calloc",),
    "stored": ("posix_memalign",),
    "throwing": _NEW,
    "moving": ("realloc", "rallocx"),
    "freeing": ("free", "cfree", "free_sized", "free_aligned_sized", "dallocx", "sdallocx", *_DELETE),
}
"""Hooked functions by stub of track.S: C functions, C++ operators new and delete by their mangled
names (Itanium C++ ABI, 5.1.4), and further functions of jemalloc."""
_STUBS = {name: stub for stub, names in FUNCTIONS.items() for name in names}
_REQUIRED = ("malloc", "free")  # a module with both is an allocator
_FUNCTION = 2  # STT_FUNC
_SHN_ABS = 0xFFF1
_ALIGNMENT = 16
_MADE_OF_CALLER = pack(OWN, 16, 1, -16)  # the stub has pushed the frame pointer


class Hook(NamedTuple):
    """A function that gets the stub `kind`. `other`: function that the stub calls instead; 0:
    itself."""

    address: int
    name: str
    kind: str
    module: str
    other: int = 0


class TrackingCode:
    """Routines, and a stub for each hook. Implements patcher.StubCode."""

    def __init__(self, hooks: Sequence[tuple[Hook, Patch]]) -> None:
        self._hooks = hooks
        self._starts: list[int] = []
        at = _align(len(trackcode.ROUTINES))
        for hook, patch in hooks:
            self._starts.append(at)
            at += _align(len(_blob(hook)) + len(relocate_code(patch, patch.address)))
        self.size = at

    @property
    def patches(self) -> Sequence[Patch]:
        return [patch for _, patch in self._hooks]

    def entry(self, number: int) -> int:
        return self._starts[number] + trackcode.ENTRY[self._hooks[number][0].kind]

    def at(self, address: int, table: int) -> bytes:
        made = bytearray(trackcode.ROUTINES.ljust(self.size, b"\xcc"))
        for (hook, patch), start in zip(self._hooks, self._starts):
            blob = bytearray(_blob(hook))
            struct.pack_into("<3Q", blob, trackcode.TABLE, table, hook.address | EXACT, hook.other)
            blob += relocate_code(patch, address + start + len(blob))
            made[start : start + len(blob)] = blob
        return bytes(made)

    def rules(self, address: int) -> dict[int, int]:
        """Return the unwind rules of the stubs' frames, for code at `address`."""
        places = zip(self._hooks, self._starts)
        return {address + start + trackcode.BACK[hook.kind]: _MADE_OF_CALLER for (hook, _), start in places if hook.kind in trackcode.BACK}


def _blob(hook: Hook) -> bytes:
    made = getattr(trackcode, hook.kind.upper())
    assert isinstance(made, bytes)
    return made


def _align(size: int) -> int:
    return size + _ALIGNMENT - 1 & -_ALIGNMENT


def find_hooks(target: Target, patch: Callable[[int, str], Patch]) -> tuple[list[tuple[Hook, Patch]], list[str]]:
    """Return the allocators' functions, each with its patch, and a line for each that cannot be
    patched.
    Raises TargetError if no block, or no free, would be seen."""
    found = _reachable(target, list(_allocators(target)))
    made: list[tuple[Hook, Patch]] = []
    notes = []
    for hook in found:
        try:
            made.append((hook, patch(hook.address, hook.name)))
        except Refused as error:
            if hook.name in _REQUIRED:
                raise TargetError(f"{hook.module}: {error}") from None
            notes.append(f"{hook.module}: blocks that {hook.name} allocates or frees are not seen: {error}")
    return made, notes


def _allocators(target: Target) -> Iterator[list[Hook]]:
    """Yield the functions of each module that is an allocator."""
    for module in target.modules():
        name = module.path.rsplit("/", 1)[-1]
        if name.startswith("ld-"):  # its malloc serves only itself, before libc is loaded
            continue
        at = _find_defined(target, module)
        if all(required in at for required in _REQUIRED):
            yield list(_hooks(at, name))


def _hooks(at: Mapping[str, int], module: str) -> Iterator[Hook]:
    seen: set[int] = set()
    for name, stub in _STUBS.items():
        address = at.get(name, 0)
        if not address or address in seen:
            continue
        other = at.get(name + _NOTHROW, 0) if stub == "throwing" else 0
        if stub == "throwing" and not other:
            continue  # the function that it calls is hooked
        seen.add(address)
        yield Hook(address, name, stub, module, other)


def _reachable(target: Target, allocators: list[list[Hook]]) -> list[Hook]:
    """Return the hooks within reach of one stub. Prefers the program's own allocator, which the
    libraries also use, to one that is too far from it."""
    if not allocators:
        raise TargetError("no module of the process has malloc and free in its symbol tables: nothing to track")
    program = target.exe_path.rsplit("/", 1)[-1]
    allocators.sort(key=lambda one: one[0].module != program)
    first = allocators[0][0].address
    return [hook for one in allocators for hook in one if abs(hook.address - first) < MAX_DISTANCE]


def _find_defined(target: Target, module: Module) -> dict[str, int]:
    """Return the addresses of the functions in _STUBS that a module defines."""
    found: dict[str, int] = {}
    for table in target.symbol_tables(module):
        for name, value in _find_wanted(table):
            found.setdefault(name, value + module.bias)
    return found


def _find_wanted(table: Table) -> Iterator[tuple[str, int]]:
    names: dict[int, str] = {}
    for name in _STUBS:
        at = table.strings.find(name.encode() + b"\0")
        while at >= 0:
            names[at] = name  # string tables share tails of names
            at = table.strings.find(name.encode() + b"\0", at + 1)
    if names:
        for row in struct.iter_unpack(table.form, table.symbols):
            if row[0] in names:
                at, info, section, value, size = table.fields(row)
                if section not in (0, _SHN_ABS) and info & 15 == _FUNCTION and value and size:
                    yield names[at], value
