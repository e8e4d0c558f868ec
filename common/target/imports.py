"""Names of the functions that a module imports, by the slots that contain their addresses.

Sources: System V ABI, AMD64 supplement 1.0, 4.4 (relocations); System V ABI, chapter 5 (dynamic
section)."""

from __future__ import annotations

import struct

from findleaks.errors import FindleaksError
from findleaks.target import elf
from findleaks.target.base import Module, Target

_RELA, _RELASZ, _PLTRELSZ, _JMPREL = 7, 8, 2, 23  # tags of the dynamic section
_ENTRY, _SYMBOL = 24, 24  # bytes of an Elf64_Rela, and of an Elf64_Sym
_MOST = 1 << 20  # bytes of relocations that are read
_LONGEST = 256  # bytes of a name


def name_import(target: Target, module: Module, slot: int) -> str:
    """Return the name of the symbol whose address ld.so stored in a slot of the module; "" if it is
    unknown. Only for 64-bit modules with Elf64_Rela."""
    try:
        head = elf.header(target.read(module.start, 64))
        parts = elf.segments(target.read(module.start, target.arch.page), head)
        tags = elf.dynamic(target.read, head, parts, module.bias)
        if head.bits != 64 or elf.DT_SYMTAB not in tags or elf.DT_STRTAB not in tags:
            return ""

        def place(tag: int) -> int:
            # On some platforms, ld.so adds the load address to the addresses in the dynamic
            # section.
            return tags[tag] if tags[tag] >= module.start else tags[tag] + module.bias

        for table, length in ((_JMPREL, _PLTRELSZ), (_RELA, _RELASZ)):
            size = min(tags.get(length, 0), _MOST) // _ENTRY * _ENTRY
            data = target.read(place(table), size) if table in tags and size else b""
            for offset, info, _ in struct.iter_unpack(head.prefix + "QQq", data):
                if offset + module.bias == slot and info >> 32:
                    symbol = target.read(place(elf.DT_SYMTAB) + (info >> 32) * _SYMBOL, 4)
                    name = place(elf.DT_STRTAB) + int(struct.unpack(head.prefix + "I", symbol)[0])
                    return bytes(target.read(name, _LONGEST)).partition(b"\0")[0].decode("utf-8", "replace")
    except (FindleaksError, struct.error):
        pass
    return ""
