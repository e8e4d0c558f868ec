"""Builds memory images as libumem leaves them, from the structures that umem_impl.h and vmem_impl_user.h document (64-bit).

Written from those headers, apart from the reader's own table of offsets, so that a mistake in one shows against the other.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Optional

from fake import FakeTarget

from findleaks.allocators import umem
from findleaks.allocators.umem.instance import Umem
from findleaks.engine import load as engine
from findleaks.engine.contract import Blocks
from findleaks.target.arch import X86_64, Arch
from findleaks.target.base import Module

DATA, DATA_SIZE = 0x7F0000100000, 0x10000
HEAP, HEAP_SIZE, INTERNAL = 0x7F0010000000, 0x400000, 0x100000
PAGE = 4096
DEBUG = 0x1 | 0x2 | 0x4 | 0x8  # UMEM_DEBUG=default: audit, deadbeef, redzone, contents
HASH = 0x200
CLASSES = (8, 16, 32, 48, 64, 128, 256, 1024, 4096, 16384)
STACK = (0x401000, 0x401234, 0x7F0000000042)
DEADBEEF, BADDCAFE, FEEDFACE = 0xDEADBEEFDEADBEEF, 0xBADDCAFEBADDCAFE, 0xFEEDFACEFEEDFACE


@dataclass
class Slab:
    """`base` of the first buffer; `free` numbers of buffers on its list, first first; `address` of umem_slab_t."""

    base: int
    address: int
    chunks: int
    free: list[int]
    bufctls: list[int]


@dataclass
class Cache:
    """`loaded` and `ploaded` hold each CPU's buffers (None: no magazine), `depot` a list a full magazine."""

    name: str
    bufsize: int
    address: int
    flags: int
    cflags: int
    arena: int
    chunksize: int
    slabsize: int
    slabs: list[Slab] = field(default_factory=list)
    loaded: dict[int, list[int]] = field(default_factory=dict)
    ploaded: dict[int, list[int]] = field(default_factory=dict)
    depot: list[list[int]] = field(default_factory=list)
    fails: int = 0

    @property
    def buftag(self) -> int:
        return (self.bufsize + 7) // 8 * 8 if self.flags & 6 else 0

    @property
    def bufctl(self) -> int:
        return self.buftag or (self.bufsize + 7) // 8 * 8 - 8


@dataclass
class Arena:
    """`segments` are (start, end, type) in order, spans (16) among them; `values` what is in vm_kstat, where not as they sum up."""

    name: str
    address: int
    source: int
    segments: list[tuple[int, int, int]] = field(default_factory=list)


class UmemImage:
    """A process with libumem in it. Make blocks, then `target()`; `address(...)` of structures are known from the start."""

    def __init__(
        self,
        mutex: int = 40,
        cond: int = 48,
        debug: int = 0,
        cpus: int = 2,
        *,
        heap: int = HEAP_SIZE,
        internal: int = INTERNAL,
        classes: Sequence[int] = CLASSES,
    ) -> None:
        self.mutex, self.cond, self.debug, self.cpus = mutex, cond, debug, cpus
        self.memory = {DATA: bytearray(DATA_SIZE), HEAP: bytearray(heap)}
        self.end, self.above = HEAP + heap, HEAP + internal
        self.page = self.above  # internal structures below, slabs above
        self.bump = HEAP
        self.stride = 64 if mutex + 40 <= 64 else 128
        self.depth = 8
        self.null = DATA + 0x1000
        self.magtype = DATA + 0x800
        self.caches: list[Cache] = []
        self.arenas: list[Arena] = []
        self.seg0 = DATA + 0xA000
        for name, source in (
            *(("mmap_top", ""), ("mmap_heap", "mmap_top"), ("umem_internal", "mmap_heap"), ("umem_default", "mmap_heap")),
            *(("umem_oversize", "mmap_heap"), ("umem_memalign", "mmap_heap")),
        ):
            self.arena(name, source)
        self.put(self.magtype, struct.pack("<iiQQQ", 4, 64, 0, 0, 0))
        self.cache("umem_bufctl_audit_cache", 80 + 8 * self.depth, arena="umem_internal")
        for size in classes:
            self.cache(f"umem_alloc_{size}", size)

    # ---- memory

    def put(self, address: int, data: bytes) -> None:
        for start, memory in self.memory.items():
            if start <= address < start + len(memory):
                memory[address - start : address - start + len(data)] = data
                return
        raise ValueError(hex(address))

    def words(self, address: int, *values: int) -> None:
        self.put(address, struct.pack(f"<{len(values)}Q", *(value & (1 << 64) - 1 for value in values)))

    def take(self, size: int, align: int = 16) -> int:
        self.bump = (self.bump + align - 1) // align * align
        self.bump += size
        return self.bump - size

    def pages(self, size: int) -> int:
        self.page += (size + PAGE - 1) // PAGE * PAGE
        return self.page - (size + PAGE - 1) // PAGE * PAGE

    # ---- arenas and caches

    def arena(self, name: str, source: str = "") -> Arena:
        address = DATA + 0x2000 + len(self.arenas) * 0x1000  # vmem0
        made = Arena(name, address, self.named_arena(source).address if source else 0)
        self.arenas.append(made)
        return made

    def named_arena(self, name: str) -> Arena:
        return next(arena for arena in self.arenas if arena.name == name)

    def named(self, name: str) -> Cache:
        return next(cache for cache in self.caches if cache.name == name)

    @property
    def cpu_offset(self) -> int:
        """offsetof(umem_cache_t, cache_cpu)."""
        return 88 + 32 + 7 * 8 + 16 + 4 * 8 + 8 + self.mutex + 12 * 8 + 7 * 8 + 2 * 8 + self.mutex + 8 + 2 * 40

    def cache(self, name: str, bufsize: int, arena: str = "umem_default", flags: Optional[int] = None, cflags: int = 0) -> Cache:
        flags = (self.debug if arena != "umem_internal" else 0) if flags is None else flags
        chunk = (bufsize + 7) // 8 * 8 + (24 if flags & 6 else 0)
        chunk = (chunk + 15) // 16 * 16 if bufsize >= 16 else chunk
        if flags & 1 or chunk >= PAGE // 8:
            flags |= HASH
        slabsize = (chunk * 4 + PAGE - 1) // PAGE * PAGE if flags & HASH else PAGE
        address = self.take(self.cpu_offset + self.cpus * self.stride, 64)
        made = Cache(name, bufsize, address, flags, cflags, self.named_arena(arena).address, chunk, slabsize)
        self.caches.append(made)
        return made

    def slab(self, cache: Cache) -> Slab:
        page = self.pages(cache.slabsize)
        base = page
        if cache.flags & HASH:
            chunks = cache.slabsize // cache.chunksize
            address = self.take(56)
            bufctls = [self.take(80 + 8 * self.depth, 32) for _ in range(chunks)]
        else:
            address = page + PAGE - 56
            chunks = (PAGE - 56) // cache.chunksize
            bufctls = [base + i * cache.chunksize + cache.bufctl for i in range(chunks)]
        made = Slab(base, address, chunks, list(reversed(range(chunks))), bufctls)
        cache.slabs.append(made)
        if cache.arena == self.named_arena("umem_default").address:
            self.named_arena("umem_default").segments += [(page, page + cache.slabsize, 16), (page, page + cache.slabsize, 1)]
        for index in range(chunks):
            self._freed(cache, base + index * cache.chunksize, bufctls[index])
        return made

    # ---- buffers

    def _freed(self, cache: Cache, buffer: int, bufctl: int) -> None:
        if cache.flags & 2:
            self.words(buffer, *[DEADBEEF] * (cache.buftag // 8))
        if cache.flags & 6:
            self.words(buffer + cache.buftag, FEEDFACE, bufctl, bufctl ^ 0xF4EEF4EE)

    def alloc(self, cache: Cache, size: Optional[int] = None) -> int:
        """umem_cache_alloc(), or with `size` umem_alloc()."""
        slab = next((slab for slab in cache.slabs if slab.free), None) or self.slab(cache)
        index = slab.free.pop(0)
        buffer = slab.base + index * cache.chunksize
        bufctl = slab.bufctls[index]
        if cache.flags & 2:
            self.words(buffer, *[BADDCAFE] * (cache.buftag // 8))
        if cache.flags & 6:
            self.words(buffer + cache.buftag, FEEDFACE, bufctl, bufctl ^ 0xA110C8ED)
            if size is not None:
                self.put(buffer + size, b"\xbb")
                self.put(buffer + cache.buftag + 4, struct.pack("<I", 251 * size + 1))
        return buffer

    def umem_alloc(self, size: int) -> int:
        if size > CLASSES[-1]:
            return self.segment("umem_oversize", size, 0)
        return self.alloc(self.named(f"umem_alloc_{next(c for c in CLASSES if c >= size)}"), size)

    def malloc(self, size: int) -> int:
        """The address that malloc(size) returns."""
        tags = 8 if size + 8 <= 16 else 16
        buffer = self.umem_alloc(size + tags)
        self.tag(buffer + tags - 8, size + tags, 0x3A10C000 if tags == 8 else 0x16BA7000)
        return buffer + tags

    def memalign(self, align: int, size: int) -> int:
        buffer = self.segment("umem_memalign", size + 16, align - 16)
        self.tag(buffer, 0, 0x3E3A1000)
        self.tag(buffer + 8, size + 16, 0x3E3A1000)
        return buffer + 16

    def tag(self, place: int, size: int, magic: int) -> None:
        self.put(place, struct.pack("<II", size, (magic - size) & 0xFFFFFFFF))

    def segment(self, arena: str, size: int, phase: int) -> int:
        """Import a span and hand out a part of it; what is left on either side is free."""
        span = (size + phase + PAGE - 1) // PAGE * PAGE
        page = self.pages(span)
        start, end = page + phase, page + phase + size
        quantum = 8 if arena == "umem_memalign" else PAGE
        rest = end + -end % quantum
        into = self.named_arena(arena).segments
        into.append((page, page + span, 16))
        into += [one for one in ((page, start, 2), (start, end, 1), (rest, page + span, 2)) if one[0] < one[1]]
        return start

    def owner(self, buffer: int) -> tuple[Cache, Slab, int]:
        for cache in self.caches:
            for slab in cache.slabs:
                index, odd = divmod(buffer - slab.base, cache.chunksize)
                if 0 <= index < slab.chunks and not odd:
                    return cache, slab, index
        raise ValueError(hex(buffer))

    def release(self, buffer: int, untag: int = -1, to: str = "slab", cpu: int = 0) -> None:
        """umem_cache_free(); `untag` is where malloc's tag is in the buffer (free() spoils it); `to` a list to put it on."""
        cache, slab, index = self.owner(buffer)
        if untag >= 0:
            self.put(buffer + untag + 4, struct.pack("<I", 0xDEADBEEF))
        self._freed(cache, buffer, slab.bufctls[index])
        if to == "slab":
            slab.free.insert(0, index)
        elif to == "depot":
            if not cache.depot or len(cache.depot[-1]) == 4:
                cache.depot.append([])
            cache.depot[-1].append(buffer)
        else:
            getattr(cache, to).setdefault(cpu, []).append(buffer)

    # ---- writing it all down

    def target(self, name: str = "/usr/lib/libumem.so.1", arch: Arch = X86_64) -> FakeTarget:
        self.write()
        module = Module(name, DATA - 0x100000, DATA - 0x100000, DATA + DATA_SIZE)
        memory = {start: bytes(data) for start, data in self.memory.items()}
        return FakeTarget(memory, names={DATA: name}, modules=[module], arch=arch)

    def write(self) -> None:
        self._write_caches()
        for cache in self.caches:
            self._write_slabs(cache)
        self.finish_arenas()
        for number, arena in enumerate(self.arenas):
            self._write_arena(arena, self.arenas[number + 1].address if number + 1 < len(self.arenas) else 0)

    def finish_arenas(self) -> None:
        self.named_arena("mmap_top").segments = [(HEAP, self.end, 16), (HEAP, self.end, 1)]
        self.named_arena("mmap_heap").segments = [(HEAP, self.end, 16), (HEAP, self.page, 1), (self.page, self.end, 2)]
        self.named_arena("umem_internal").segments = [(HEAP, self.above, 16), (HEAP, self.above, 1)]

    def _write_caches(self) -> None:
        null_slab = self.null + self.cpu_offset - 2 * 40 - 8 - self.mutex - 2 * 8 - 7 * 8
        self.put(self.null + 88, b"invalid_cache\0")
        self.words(null_slab - 8, null_slab, self.null, 0, null_slab, null_slab, 0, -1, 0)
        self.put(self.null + self.cpu_offset + self.mutex, struct.pack("<IIQQiiii", 0, 0, 0, 0, -1, -1, 0, 0))
        ring = [self.null, *(cache.address for cache in self.caches)]
        for number, address in enumerate(ring):
            after, before = ring[(number + 1) % len(ring)], ring[number - 1]
            self.words(address + 88 + 32 + 7 * 8 + 16, after, before)
        for cache in self.caches:
            self._write_cache(cache)

    def _write_cache(self, cache: Cache) -> None:
        at, slabs = cache.address, len(cache.slabs)
        total = sum(slab.chunks for slab in cache.slabs)
        out = total - sum(len(slab.free) for slab in cache.slabs)
        self.words(at, slabs, 0, out, 0, cache.fails, total, total, 0, 0, 0, 0)
        self.put(at + 88, cache.name.encode() + b"\0")
        self.words(at + 120, cache.bufsize, 16, 0, 0, 0, 0, cache.arena)
        self.put(at + 176, struct.pack("<IIII", cache.cflags, cache.flags, 0, 0))
        self.put(at + 224, struct.pack("<I", self.cpus - 1))
        layer = at + 232 + self.mutex
        table = self.take(64 * 8) if cache.flags & HASH else 0
        shift, mask = (4, 63) if table else (0, 0)
        self.words(
            layer,
            cache.chunksize,
            cache.slabsize,
            cache.bufctl,
            cache.buftag,
            cache.buftag if cache.flags & 2 else 0,
            0,
            0,
            0,
            0,
            shift,
            mask,
        )
        nullslab = layer + 12 * 8
        order = [nullslab, *(slab.address for slab in cache.slabs)]
        self.words(layer + 88, order[-1], at, 0, order[1 % len(order)], order[-1], 0, -1, 0)
        self.words(nullslab + 56, self.caches[0].address if table else 0, table)
        depot = nullslab + 72 + self.mutex
        self.words(depot, self.magtype, self._magazines(cache.depot), len(cache.depot), 0, 0, 0, 0, 0, 0, 0, 0)
        for cpu in range(self.cpus):
            mags = [cache.loaded.get(cpu), cache.ploaded.get(cpu)]
            places = [0 if rounds is None else self._magazines([rounds]) for rounds in mags]
            counts = [-1 if rounds is None else len(rounds) for rounds in mags]
            where = at + self.cpu_offset + cpu * self.stride + self.mutex
            self.put(where, struct.pack("<IIQQiiiI", 10 + cpu, 3, *places, *counts, 4, cache.flags))
        if table:
            self._write_hash(cache, table, shift, mask)

    def _magazines(self, lists: list[list[int]]) -> int:
        head = 0
        for rounds in reversed(lists):
            place = self.take(5 * 8)
            self.words(place, head, *rounds, *[0x4141414141414141] * (4 - len(rounds)))
            head = place
        return head

    def _write_hash(self, cache: Cache, table: int, shift: int, mask: int) -> None:
        buckets: dict[int, int] = {}
        for slab in cache.slabs:
            for index, bufctl in enumerate(slab.bufctls):
                buffer = slab.base + index * cache.chunksize
                self.words(bufctl, 0, buffer, slab.address)
                if cache.flags & 1:
                    self.words(bufctl + 24, cache.address, 1000 + index, 0x7F00DEAD0000, 0, 0)
                    self.put(bufctl + 64, struct.pack("<i4x", len(STACK)))
                    self.words(bufctl + 72, *STACK)
                if index not in slab.free:
                    bucket = buffer >> shift & mask
                    self.words(bufctl, buckets.get(bucket, 0))
                    buckets[bucket] = bufctl
        for bucket, bufctl in buckets.items():
            self.words(table + 8 * bucket, bufctl)

    def _write_slabs(self, cache: Cache) -> None:
        nullslab = cache.address + 232 + self.mutex + 12 * 8
        order = [nullslab, *(slab.address for slab in cache.slabs), nullslab]
        for number, slab in enumerate(cache.slabs, 1):
            links = [slab.bufctls[index] for index in slab.free]
            head = links[0] if links else 0
            refcnt = slab.chunks - len(slab.free)
            self.words(slab.address, cache.address, slab.base, order[number + 1], order[number - 1], head, refcnt, slab.chunks)
            for at, after in zip(links, [*links[1:], 0]):
                self.words(at, after)

    def _write_arena(self, arena: Arena, following: int) -> None:
        at = arena.address
        self.put(at, arena.name.encode() + b"\0")
        fields = at + 32 + self.cond + self.mutex + 16
        seg0 = fields + 12 * 8
        size = 232
        quantum = {"umem_memalign": 8}.get(arena.name, PAGE)
        self.words(fields, quantum, 0, 0, 0, arena.source, following, 0, 0, seg0 + 2 * size, 15, 4, 0)
        freelist = seg0 + 2 * size + 32 * 8
        for number in range(65):
            place = freelist + 32 * number
            self.words(place, 0, 1 << number, place + 32 if number < 64 else 0, place - 32 if number else 0)
        kinds = [16, *(kind for _, _, kind in arena.segments), 32]
        places = [seg0]
        for _ in arena.segments:
            places.append(self.seg0 if arena.name == "mmap_top" else self.take(56))
            self.seg0 += 232 if arena.name == "mmap_top" else 0
        places.append(seg0 + size)  # the rotor, which precedes vm_seg0 in the ring
        bounds = [(0, 0), *((start, end) for start, end, _ in arena.segments), (0, 0)]
        spans = [place for place, kind in zip(places, kinds) if kind == 16]
        kin = dict(zip(spans, [*spans[1:], spans[0]]))
        for number, place in enumerate(places):
            after, before = places[(number + 1) % len(places)], places[number - 1]
            self.words(place, *bounds[number], kin.get(place, 0), 0, after, before, kinds[number])
        inuse = sum(end - start for start, end, kind in arena.segments if kind == 1)
        total = sum(end - start for start, end, kind in arena.segments if kind == 16)
        allocs = sum(1 for _, _, kind in arena.segments if kind == 1)
        self.words(freelist + 65 * 32, inuse, 0, total, 0, allocs + 5, 5, 0, 2)


def read(target: FakeTarget, pure: bool = False) -> tuple[Umem, Blocks]:
    """The one libumem of a target, its heaps walked."""
    at = engine.load(target.arch, pure)
    (found,) = umem.find(target, at, [])
    assert isinstance(found, Umem)
    blocks = at.blocks(target.arch, found.granule)
    for heap in sorted(found.heaps(), key=lambda heap: heap.start):
        heap.walk(blocks)
    blocks.seal()
    found.sealed(blocks)
    return found, blocks
