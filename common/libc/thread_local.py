"""Thread-local variables: the address of each file's variables in each thread.

ld.so keeps these fields for each file in struct link_map (glibc 2.36 include/link.h):
l_tls_initimage, l_tls_initimage_size, l_tls_blocksize, l_tls_align, l_tls_firstbyte_offset,
l_tls_offset, l_tls_modid. The first four fields repeat values of PT_TLS. The position of the fields
is found by these values, because the structure grows with every version.

Variables are l_tls_offset bytes below the thread pointer (variant II: x86-64, i386, s390x) or above
it (variant I). If a file has no offset, its variables are in separate memory that the thread's DTV
points to (elf/dl-tls.c)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Optional

from findleaks.errors import UnreadableMemory
from findleaks.libc.loader import MAX_MODULES, iterate_link_maps
from findleaks.libc.stacks import musl_pthread
from findleaks.target.arch import Arch
from findleaks.target.base import Module, Range, Target, Thread
from findleaks.target.elf import PT_TLS, Segment
from findleaks.target.modules import module_headers
from findleaks.target.words import word_at, words_at
from findleaks.value_classes import NamedTuple

LINK_MAP = 200  # words of a struct link_map that are read; it has 145 in 2.36

# Maximum number of blocks of all threads together: a thousand files in each of a thousand threads
MAX_BLOCKS = 1 << 20

# Sizes of glibc's struct pthread (DWARF of 2.31 and 2.36). For variant II it is the size on x86-64,
# the largest; on other machines, unused memory follows the structure. For variant I it depends on
# the size of a word.
PTHREAD_ABOVE = 2304
PTHREAD_BELOW = {4: 1280, 8: 1856}


class Block(NamedTuple):
    """The variables of one file in one thread."""

    thread: int  # tid
    module: Module
    range: Range


class _Template(NamedTuple):
    """The TLS of a file: its size, and its position in each thread."""

    module: Module
    size: int
    # Distance from the thread pointer, down or up (Arch.variables_above); 0 if it is not fixed.
    offset: int
    number: int  # the file's number in DTVs


def control_block(target: Target, thread_pointer: int) -> Range:
    """Return the memory of a thread's struct pthread. In variant II it extends from the thread
    pointer up to the end of the structure. In variant I it is below the thread pointer, and
    includes the memory up to the thread's variables."""
    arch = target.arch
    if not arch.variables_above:
        return Range(thread_pointer, min(thread_pointer + PTHREAD_ABOVE, arch.mask))
    start = musl_pthread(target, thread_pointer) or max(thread_pointer - PTHREAD_BELOW[arch.word], 0)
    return Range(start, min(thread_pointer + arch.variables_distance, arch.mask))


def static_tls(target: Target) -> Optional[int]:
    """Return the upper limit, in bytes, of static thread-local variables below a thread pointer.
    None if the headers of a module are missing.

    Each module's PT_TLS segment is placed below the one before it, aligned (glibc elf/dl-tls.c,
    _dl_determine_tlsoffset). Modules loaded later are included, although most of them keep their
    variables elsewhere: the limit is an upper bound."""
    found = []
    for module in target.modules():
        head = module_headers(target, module)
        if head is None:
            return None
        found += [(segment.memsz, max(segment.align, 1)) for segment in head[1] if segment.type == PT_TLS]
    widest = max((align for _, align in found), default=1)
    return sum(-(-size // widest) * widest for size, _ in found) if target.modules() else None


def static_storage(arch: Arch, thread_pointer: int, size: int) -> Range:
    """Return the `size` bytes on the side of the thread pointer where its variables are."""
    if arch.variables_above:
        return Range(thread_pointer, min(thread_pointer + size, arch.mask))
    return Range(max(thread_pointer - size, 0), thread_pointer)


def thread_local_blocks(target: Target) -> list[Block]:
    """Return the blocks of all threads, ascending. If ld.so's list of files is unreadable, return
    only the blocks of the program."""
    templates = list(_templates(target))
    found: list[Block] = []
    for thread in target.threads():
        if thread.thread_pointer:
            for template in templates:
                if len(found) == MAX_BLOCKS:
                    break
                start = _start(target, thread, template)
                if start:
                    found.append(Block(thread.tid, template.module, Range(start, start + template.size)))
    return sorted(found, key=lambda block: block.range)


def _templates(target: Target) -> Iterator[_Template]:
    """Yield the TLS template of each loaded file."""
    segments = {module.bias: (module, segment) for module in target.modules() for segment in _segment(target, module)}
    word = target.arch.word
    known = set()
    for address in iterate_link_maps(target):
        try:
            bias = target.word(address)
            if bias not in segments:
                continue
            module, segment = segments[bias]
            words = words_at(target, address, LINK_MAP * word)
        except UnreadableMemory:
            continue
        pattern = (bias + segment.vaddr & target.arch.mask, segment.filesz, segment.memsz)
        for at in range(len(words) - 7):
            if words[at : at + 3] == pattern:
                offset = words[at + 5]
                known.add(bias)
                yield _Template(module, segment.memsz, offset if offset < target.arch.mask >> 8 else 0, words[at + 6])
                break
    for module, segment in segments.values():
        # In a static program, and with musl, the program's TLS block is directly below the thread
        # pointer, or above it.
        if not known and len(segments) == 1:
            distance, align = target.arch.variables_distance if target.arch.variables_above else segment.memsz, max(segment.align, word)
            yield _Template(module, segment.memsz, -(-distance // align) * align, 0)


def _segment(target: Target, module: Module) -> list[Segment]:
    """Return a list with the file's TLS segment; [] if it has none."""
    head = module_headers(target, module)
    return [segment for segment in head[1] if segment.type == PT_TLS and segment.memsz][:1] if head is not None else []


def _start(target: Target, thread: Thread, template: _Template) -> int:
    """Return the address of the file's variables in this thread, or 0 if they do not exist yet."""
    if template.offset:
        return thread.thread_pointer + (template.offset if target.arch.variables_above else -template.offset)
    word = target.arch.word
    dtv = word_at(target, thread.thread_pointer + target.arch.dtv_offset)
    start = word_at(target, dtv + 2 * word * template.number) if dtv and 0 < template.number < MAX_MODULES else 0
    return start if 0 < start < target.arch.mask - template.size else 0
