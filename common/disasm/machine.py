"""What the analysis of liveness (liveness.py) knows of an architecture, and of its instructions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from findleaks.disasm.system_calls import SystemCalls


class Memory(NamedTuple):
    """An operand on the stack: `base` is "rsp" or "rbp"; `exact` is False if it has an index.
    Neither `read` nor `written`: its address is only computed."""

    base: str
    offset: int
    size: int
    exact: bool
    read: bool
    written: bool


class Effect(NamedTuple):
    """One instruction: the masks of what it `reads`, and overwrites (`kills`).

    `flow`: "next", "branch" (also to `target`), "jump", "call", "return", "stop" (execution ends),
    "system" (a system call), "unknown" (reads everything). `target` is 0 if unknown; `slot` is the
    address that it is loaded from, or 0, `via` the number of the register that has it, or -1.
    `moved` is what is added to rsp; None: rsp becomes rbp + `from_rbp`, or another address in the
    same stack. `changed` are the general registers that it may change; `constant` is the number
    that the one in `kills` is set to, `copied` the number of the register that it is copied from;
    both: it is set to their sum, or with `loads` to the word at that address. `saved`: the
    registers that it pushes, or may restore. `copies`: those of rsp and rbp that are copied to
    memory or a register other than rbp. `redirects`: the link register is set, False: to what the
    function saved of it."""

    address: int
    size: int
    reads: int
    kills: int
    flow: str = "next"
    target: int = 0
    slot: int = 0
    moved: int | None = 0
    from_rbp: int | None = None
    memory: tuple[Memory, ...] = ()
    changed: int = 0
    constant: int | None = None
    copied: int = -1
    writes_rbp: bool = False
    copies: tuple[str, ...] = ()
    saved: int = 0
    loads: bool = False
    via: int = -1
    redirects: bool | None = None


@dataclass(frozen=True)
class Machine:
    """An architecture: its registers as masks, and its calling convention."""

    decoder: tuple[str, str]  # capstone's names of its architecture and mode
    effect: Callable[[Any], Effect]  # of an instruction that capstone decoded with details
    mask_of: Callable[[str], int]  # of a word of a thread by its name; 0 for other names
    general: tuple[str, ...]  # general registers by number, which is the bit in masks
    registers: int
    not_taken: int  # that no function of libc that makes system calls takes arguments in
    if_unknown: int  # all of which a function reads only if it is not known what it reads
    callee_saved: int
    sometimes_saved: int  # that some functions preserve by a convention of their own
    arguments: tuple[str, ...]
    returned: int  # where functions return values
    link: int  # that a call puts the return address into
    red_zone: bool
    calls: SystemCalls
    before_return: int  # bytes before a return address that `called` takes
    called: Callable[[bytes], str]  # "" if they are no call, "keeping" if it may keep all registers
    # Whether an instruction loads, or jumps to, an address in a stub of the procedure linkage
    # table, by a function that reads memory.
    in_stub: Callable[[Callable[[int, int], bytes], Effect], bool]
    stub_bytes: Callable[[bytes], int]  # of the stub that begins so; 0: it is none

    def mask(self, *names: str) -> int:
        """Of these general registers."""
        return sum(1 << self.general.index(name) for name in names)

    @property
    def all_general(self) -> int:
        return (1 << len(self.general)) - 1
