"""Select the functions of a process's allocators to hook, and build the code of the hooks."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from findleaks.errors import TargetError
from findleaks.injection.stub.free_range import MAX_DISTANCE
from findleaks.injection.stub.relocate import Patch, Refused, relocate_code
from findleaks.injection.stub.table import EXACT, OWN, pack
from findleaks.target.base import Module, Target
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
"""Functions to hook, by the stub of track.S that they get: C functions, C++ operators new and
delete by their mangled names (Itanium C++ ABI, 5.1.4), and further functions of jemalloc."""
MAPPING_FUNCTIONS: Mapping[str, Sequence[str]] = {
    "first": ("sbrk", "__sbrk"),
    "second": ("mmap", "mmap64", "__mmap"),
    "remapping": ("mremap", "__mremap"),
    "unmapping": ("munmap", "__munmap"),
}
"""Functions of mappings to hook, by the stub that they get. They return -1 if they fail;
read_records leaves out such results."""


class HookSet(NamedTuple):
    """Functions to hook. They are hooked in each module that defines all `required` functions.
    `what`: what they allocate, for messages."""

    stubs: Mapping[str, str]
    required: tuple[str, ...]
    what: str


BLOCKS = HookSet({name: stub for stub, names in FUNCTIONS.items() for name in names}, ("malloc", "free"), "blocks")
MAPPINGS = HookSet({name: stub for stub, names in MAPPING_FUNCTIONS.items() for name in names}, ("mmap", "munmap"), "mappings")
_FUNCTION = 2  # STT_FUNC
_SHN_ABS = 0xFFF1
_ALIGNMENT = 16
_MADE_OF_CALLER = pack(OWN, 16, 1, -16)  # the stub has pushed the frame pointer


class Hook(NamedTuple):
    """A function that gets the stub `kind`. `other`: the function that the stub calls instead; 0:
    the hooked function."""

    address: int
    name: str
    kind: str
    module: str
    other: int = 0


class TrackingCode:
    """The routines, and a stub for each hook. Implements patcher.StubCode."""

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


def find_hooks(target: Target, patch: Callable[[int, str], Patch], wanted: HookSet = BLOCKS) -> tuple[list[tuple[Hook, Patch]], list[str]]:
    """Return the functions to hook, each with its patch, and a line for each function that cannot
    be patched.
    Raises TargetError if no allocation, or no release, would be recorded."""
    found = _reachable(target, list(_hooked_modules(target, wanted)), wanted)
    made: list[tuple[Hook, Patch]] = []
    notes = []
    for hook in found:
        try:
            made.append((hook, patch(hook.address, hook.name)))
        except Refused as error:
            if hook.name in wanted.required:
                raise TargetError(f"{hook.module}: {error}") from None
            notes.append(f"{hook.module}: {wanted.what} that {hook.name} allocates or frees are not seen: {error}")
    return made, notes


def _hooked_modules(target: Target, wanted: HookSet) -> Iterator[list[Hook]]:
    """Yield, for each module that defines the required functions, its hooks."""
    for module in target.modules():
        name = module.path.rsplit("/", 1)[-1]
        if name.startswith("ld-"):  # ld.so calls these functions only itself, before libc is loaded
            continue
        at = _find_defined(target, module, wanted)
        if all(required in at for required in wanted.required):
            yield list(_hooks(at, name, wanted))


def _hooks(at: Mapping[str, int], module: str, wanted: HookSet) -> Iterator[Hook]:
    seen: set[int] = set()
    for name, stub in wanted.stubs.items():
        address = at.get(name, 0)
        if not address or address in seen:
            continue
        other = at.get(name + _NOTHROW, 0) if stub == "throwing" else 0
        if stub == "throwing" and not other:
            continue  # the function that this one calls is hooked
        seen.add(address)
        yield Hook(address, name, stub, module, other)


def _reachable(target: Target, allocators: list[list[Hook]], wanted: HookSet) -> list[Hook]:
    """Return the hooks that are within reach of one stub. If allocators are too far from each
    other, the program's own is preferred, because libraries also use it."""
    if not allocators:
        raise TargetError(f"no module of the process has {' and '.join(wanted.required)} in its symbol tables: nothing to track")
    program = target.exe_path.rsplit("/", 1)[-1]
    allocators.sort(key=lambda one: one[0].module != program)
    first = allocators[0][0].address
    return [hook for one in allocators for hook in one if abs(hook.address - first) < MAX_DISTANCE]


def _find_defined(target: Target, module: Module, wanted: HookSet) -> dict[str, int]:
    """Return the addresses of the wanted functions that a module defines."""
    found: dict[str, int] = {}
    for table in target.symbol_tables(module):
        for name, (_, info, section, value, size) in table.find_named(wanted.stubs):
            if section not in (0, _SHN_ABS) and info & 15 == _FUNCTION and value and size:
                found.setdefault(name, value + module.bias)
    return found
