"""Alternate signal stacks: blocks that only the kernel refers to.

A program passes a block to sigaltstack(2) and need not keep its address, because the kernel stores
it for each thread. No file of /proc shows this address. Two kinds of evidence identify such a
block.

- Proof: the kernel stores a `stack_t` {ss_sp, ss_flags, ss_size} with the block's address in every
  signal frame (uc_stack), and the program passes one to sigaltstack. One of these `stack_t` may
  still be in the block, or in the dead part of a stack.
- Size and contents: the process calls sigaltstack, the block has exactly the size that libc
  recommends (SIGSTKSZ), and contains only zeros, like a stack that was never used. If libc computes
  the size from the processor's minimum (AT_MINSIGSTKSZ), the size is so rare that the contents do
  not matter. At most as many such blocks as there are threads are accepted; more are a leak.

Other unreferenced blocks that contain only zeros may be such stacks, too. They stay leaked, with a
warning.

Sources: glibc 2.34 and later, sysdeps/unix/sysv/linux/sysconf-sigstksz.h (4 * AT_MINSIGSTKSZ, at
least the constant), bits/sigstack.h and musl 1.2, arch/*/bits/signal.h (the constants)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from findleaks.engine.contract import Blocks, Engine, Graph
from findleaks.errors import UnreadableMemory
from findleaks.target import arch as arches
from findleaks.target.base import Range, Target
from findleaks.target.ranges import nonzero_pieces
from findleaks.value_classes import NamedTuple

AT_MINSIGSTKSZ = 51
_CONSTANTS = {arches.AARCH64.name: ((5120, 16384), (6144, 12288))}
_COMMON = ((2048, 8192),)
"""(MINSIGSTKSZ, SIGSTKSZ) of glibc in bytes, and those of musl if they differ. _COMMON is used for
machines that are not listed."""
_PADDING = 32  # bytes by which an allocator's usable size may exceed the requested size
_SMALLEST, _LARGEST = 2048, 1 << 20  # bytes of a stack that a stack_t may describe
_MOST = 4096  # leaked blocks of such sizes that are examined
_MOST_DATA = 64 << 20  # bytes of modules' data that are searched for the address of sigaltstack
_DISABLED = 2  # SS_DISABLE of ss_flags: no stack is set
_LIBC = ("libc.", "libc-", "ld-musl")


class SignalStacks(NamedTuple):
    """Starts of blocks, ascending. The blocks in `found` are alternate signal stacks; the blocks in
    `possible` may be."""

    found: Sequence[int] = ()
    possible: Sequence[int] = ()


def signal_stacks(target: Target, engine: Engine, blocks: Blocks, graph: Graph, dead: Callable[[], Sequence[Range]]) -> SignalStacks:
    """Find the alternate signal stacks. Call this between `Graph.mark_starts` and `mark`. `dead`
    returns the parts of stacks that are not in use."""
    if not _calls_sigaltstack(target, engine):
        return SignalStacks()
    indices = graph.find_unreferenced(_SMALLEST, _LARGEST, _MOST)
    if not indices:
        # There may be too many unreferenced blocks, such as blocks that only interior pointers
        # reach. So the search is limited to likely sizes.
        computed, constants = recommended_sizes(target)
        likely = sorted(size for size in {computed, *constants} if size)
        indices = [index for size in likely for index in graph.find_unreferenced(size, size + _PADDING, _MOST)]
    sizes = {blocks.address(index): blocks.size(index) for index in indices}
    if not sizes:
        return SignalStacks()
    found = set(_proven(target, engine, sizes, dead()))
    alike = [start for start, size in sizes.items() if start not in found and _is_recommended(target, start, size)]
    if len(found) + len(alike) <= len(target.threads()):
        found.update(alike)
    if len(found) == len(target.threads()):
        return SignalStacks(sorted(found))
    return SignalStacks(
        sorted(found), sorted(start for start, size in sizes.items() if start not in found and _is_zero(target, start, size))
    )


def recommended_sizes(target: Target) -> tuple[int, frozenset[int]]:
    """Return SIGSTKSZ as glibc computes it (0 if it is a constant), and the constants of all
    libcs."""
    constants = _CONSTANTS.get(target.arch.name, _COMMON)
    least, constant = constants[0]
    computed = 4 * max(target.auxv.get(AT_MINSIGSTKSZ, 0), least)
    return computed if computed > constant else 0, frozenset(size for _, size in constants)


def _is_recommended(target: Target, start: int, size: int) -> bool:
    """Whether a block has a recommended size, and for a constant size only zeros."""
    computed, constants = recommended_sizes(target)
    if computed and computed <= size <= computed + _PADDING:
        return True
    return any(one <= size <= one + _PADDING for one in constants) and _is_zero(target, start, size)


def _is_zero(target: Target, start: int, size: int) -> bool:
    """Whether a block contains only zeros, like a stack that was never used."""
    return not any(bytes(piece.data).strip(b"\0") for piece in target.pieces(start, start + size))


def _calls_sigaltstack(target: Target, engine: Engine) -> bool:
    """Whether a loaded file other than libc has the address of libc's sigaltstack in its data,
    where ld.so stores it. A static program contains sigaltstack only if it calls it."""
    libcs = [module for module in target.modules() if module.path.rsplit("/", 1)[-1].startswith(_LIBC)]
    if not libcs:
        return target.symbol("sigaltstack") is not None
    address = next((one.address for name in _LIBC if (one := target.symbol("sigaltstack", name)) is not None), 0)
    if not address:
        return False
    own = {module.start for module in libcs}
    others = sorted((module.start, module.end) for module in target.modules() if module.start not in own)
    left = _MOST_DATA
    for region in target.regions():
        inside = any(start <= region.start < end for start, end in others)
        if inside and region.readable and not region.executable and left > 0:
            for piece in target.pieces(region.start, min(region.end, region.start + left)):
                if len(engine.search(piece, address, address + 1)):
                    return True
            left -= region.size
    return False


def _proven(target: Target, engine: Engine, sizes: dict[int, int], dead: Sequence[Range]) -> Iterator[int]:
    """Yield the blocks for which a stack_t is in the block itself or in a dead stack. `sizes` has
    the usable size by start."""
    low, high = min(sizes), max(sizes) + 1
    places = [*(Range(start, start + size) for start, size in sizes.items()), *dead]
    for start, end in places:
        for piece in nonzero_pieces(target, start, end):
            for at in engine.search(piece, low, high):
                block = _stack_at(target, at)
                size = sizes.get(block[0])
                if size is not None and not block[1] & _DISABLED and size // 2 <= block[2] <= size:
                    yield block[0]


def _stack_at(target: Target, address: int) -> tuple[int, int, int]:
    """Read ss_sp, ss_flags and ss_size of the stack_t at an address; zeros if it is unreadable."""
    try:
        start, flags, size = target.arch.unpack(target.read(address, 3 * target.arch.word))
    except UnreadableMemory:
        return 0, _DISABLED, 0
    return start, target.arch.leading(flags, 4), size
