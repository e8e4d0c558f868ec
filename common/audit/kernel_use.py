"""Functions by which a process can have given pointers to the kernel, that its modules import: the
evidence for targets without its descriptors, such as cores that the kernel or a debugger wrote."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from findleaks.results.note_parts import KernelUse
from findleaks.target.elf import occurrences

if TYPE_CHECKING:
    from findleaks.session import Session
    from findleaks.target.base import Module
    from findleaks.target.elf import Table

TIMERS, EPOLL, _PIPES = "POSIX timers", "epoll registrations", "pipes and sockets"
_FUNCTIONS = {
    "timer_create": TIMERS,
    **dict.fromkeys(("sigqueue", "pthread_sigqueue"), "queued signals"),
    **dict.fromkeys(("mq_send", "mq_timedsend", "mq_notify", "msgsnd"), "message queues"),
    "epoll_ctl": EPOLL,
    **dict.fromkeys(("pipe", "pipe2", "socketpair", "eventfd"), _PIPES),
}
"""Functions that pass a pointer to the kernel, or make an object through which pointers pass."""
_INTERPRETERS = ("python", "ruby", "perl", "php", "node", "java", "beam", "erl", "lua", "ocaml", "dotnet")
"""Beginnings of the names of programs, and of their libraries after "lib", that import these
functions for scripts. They register numbers of descriptors with epoll, and send no pointers."""
_SYSTEM = ("/lib", "/usr/lib")
"""Folders of the distribution's libraries. Many of them import `pipe` for other purposes."""


def find_kernel_uses(session: Session) -> Iterator[KernelUse]:
    """Yield the ways in which the process can have given pointers to the kernel, one of each kind,
    with the function that a module imports for it."""
    target = session.target
    found: set[str] = set()
    modules = target.modules()
    for module in modules:
        excluded = found if _is_own(module, target.exe_path) else {*found, EPOLL, _PIPES}
        name = module.path.rsplit("/", 1)[-1]
        if name.removeprefix("lib").startswith(_INTERPRETERS):
            continue
        for table in list(target.symbol_tables(module))[-1:]:  # .dynsym, or static: .symtab
            for function in _imported(table, [one for one, what in _FUNCTIONS.items() if what not in excluded], len(modules) == 1):
                what = _FUNCTIONS[function]
                if what not in found:
                    found.add(what)
                    yield KernelUse(what, function, name)


def _is_own(module: Module, program: str) -> bool:
    """Whether the module is the program, or a library that is not the distribution's."""
    return module.path == program or not module.path.startswith(_SYSTEM)


def _imported(table: Table, names: Collection[str], is_static: bool) -> Iterator[str]:
    """Yield the functions of these names that the module imports. `is_static`: or that it
    defines."""
    places = {at: name for name in names for at in occurrences(table.strings, name.encode() + b"\0")}
    if places:
        for entry in struct.iter_unpack(table.form, table.symbols):
            if entry[0] in places and (is_static or not table.fields(entry)[2]):
                yield places[entry[0]]
