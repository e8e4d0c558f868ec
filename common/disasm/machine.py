"""Description of an architecture and its instructions for the liveness analysis (liveness.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from findleaks.disasm.system_calls import SystemCalls
from findleaks.value_classes import NamedTuple, dataclass


class Memory(NamedTuple):
    """An operand on the stack. `base` is "rsp" or "rbp". `exact` is False if it has an index.
    If it is neither `read` nor `written`, only its address is computed."""

    base: str
    offset: int
    size: int
    exact: bool
    read: bool
    written: bool


class Effect(NamedTuple):
    """One instruction: masks of the registers that it `reads` and overwrites (`kills`).

    - `flow`: "next", "branch" (also to `target`), "jump", "call", "return", "stop" (execution
      ends), "system" (a system call), "unknown" (reads everything).
    - `target`: destination, 0 if unknown; `slot`: address from which it is loaded, or 0; `via`:
      number of the register that contains it, or -1.
    - `moved`: number added to rsp. None: rsp becomes rbp + `from_rbp`, or another address in the
      same stack.
    - `changed`: general registers that it may change. `constant`: number to which the register in
      `kills` is set. `copied`: number of the register that it is copied from. If both are given,
      the register is set to their sum, or with `loads` to the word at the address that is their
      sum.
    - `saved`: registers that it pushes, or may restore. `copies`: those of rsp and rbp that it
      copies to memory or to a register other than rbp.
    - `redirects`: None: it does not set the link register. False: it restores the link register
      that the function saved. True: it sets the link register to another value."""

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

    decoder: tuple[str, str]  # capstone's names of architecture and mode
    effect: Callable[[Any], Effect]  # effect of an instruction that capstone decoded with details
    mask_of: Callable[[str], int]  # mask of a word of a thread, by its name; 0 for other names
    general: tuple[str, ...]  # general registers by number, which is the bit in masks
    registers: int
    not_taken: int  # registers that never hold arguments of libc functions that make system calls
    if_unknown: int  # if a function reads all of these registers, its reads are unknown
    callee_saved: int
    sometimes_saved: int  # registers that some functions preserve by a special convention
    arguments: tuple[str, ...]
    returned: int  # registers in which functions return values
    link: int  # register that receives the return address of a call
    red_zone: bool
    calls: SystemCalls
    before_return: int  # bytes before a return address that `called` needs
    called: Callable[[bytes], str]  # "": not a call; "keeping": it may preserve all registers
    # Whether an instruction loads, or jumps to, an address in a PLT stub; the callable reads
    # memory.
    in_stub: Callable[[Callable[[int, int], bytes], Effect], bool]
    stub_bytes: Callable[[bytes], int]  # length of the stub that the code begins with; 0: none

    def mask(self, *names: str) -> int:
        """Return the mask of these general registers."""
        return sum(1 << self.general.index(name) for name in names)

    @property
    def all_general(self) -> int:
        return (1 << len(self.general)) - 1
