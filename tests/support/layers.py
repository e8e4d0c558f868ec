"""Check the layers of `findleaks`: imports go to lower layers only, also those inside functions and for type checkers.

A package may import from packages of lower layers, but not from packages of its own layer. Knowledge about one allocator or runtime is in
its own folder, and no other allocator or runtime imports from that folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from sources import Source

LAYERS = (
    ("value_classes",),
    ("bootstrap", "catalogue", "demangle_rust_v0", "escaping", "libraries"),
    ("demangle_rust", "formatting", "progress", "quoting", "startup"),
    ("demangle", "errors"),
    ("arg_types", "wildcards"),
    ("results",),
    ("target",),
    ("engine", "disasm"),
    ("debuginfo",),
    ("libc", "unwind"),
    ("injection",),
    ("graph",),
    ("allocators",),
    ("runtimes", "block_types", "stale_slots", "types"),
    ("session",),
    ("audit", "history"),
    ("answers",),
    ("triage",),
    ("report",),
    ("counting",),
    ("tracking",),
    ("commands", "api"),
    ("debugger_session", "launcher"),
    ("gdb_subprocess", "startup_files"),
    ("doctor",),
    ("setup_commands",),
    ("cli",),
    ("gdb", "lldb", "__main__"),
)
"""The layers, the lowest first. Names are those of packages and modules directly below `findleaks`."""
APART = ("allocators", "runtimes")
"""Packages whose folders must not import from each other."""
BUILT_ON = {("node", "v8"), ("tcmalloc", "tcmallocs"), ("tcmalloc_google", "tcmallocs")}
"""Folders of these packages that may import from another folder."""

_RANK = {name: rank for rank, names in enumerate(LAYERS) for name in names}


def upward(source: Source) -> Iterator[str]:
    """Return a line for each import in a file (common/…, gdb/…, lldb/…) that does not go to a lower layer."""
    name = source.name
    if name == "common/__init__.py":
        return
    here, root = _module(name), source.root
    for line, module in _imports(source):
        there = module.split(".")[1:]
        if not there or there[0].startswith("__version"):
            continue
        unknown = next((part for part in (here[0], there[0]) if part not in _RANK), None)
        if unknown:
            yield f"{name}:{line}: {unknown} is in no layer: give it one in tests/support/layers.py"
        elif here[0] != there[0] and _RANK[there[0]] >= _RANK[here[0]]:
            yield f"{name}:{line}: {here[0]} imports {module}, which is no lower layer"
        elif here[0] == there[0] in APART and _apart(_folder(root, here), _folder(root, there)):
            yield f"{name}:{line}: {'.'.join(here[:2])} imports {module}: what several need belongs above their folders"


def _module(name: str) -> list[str]:
    """Return the parts of a module's name: ["target", "elf"] for common/target/elf.py, ["gdb", "register"] for gdb/register.py."""
    parts = name[: -len(".py")].split("/")
    return parts[1:] if parts[0] == "common" else parts


def _folder(root: Path, module: list[str]) -> str:
    """Return the folder of the allocator or runtime that contains a module; "" for modules that all of them share."""
    shared = len(module) < 2 or (root / "common" / module[0] / f"{module[1]}.py").is_file()
    return "" if shared else module[1]


def _apart(one: str, other: str) -> bool:
    return bool(one and other) and one != other and (one, other) not in BUILT_ON


def _imports(source: Source) -> Iterator[tuple[int, str]]:
    """Return line and module of each import from findleaks, without the imports that are executed only if the file is run as a script."""
    for line, module, names in source.imports_as_module:
        modules = [f"findleaks.{name}" for name in names] if module == "findleaks" else [module]
        yield from ((line, module) for module in modules if module.startswith("findleaks."))
