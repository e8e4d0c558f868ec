"""Describe an address by the block, stack, variable, metadata or mapping that it lies in."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Optional, cast

from findleaks.allocators.mapped import TYPE
from findleaks.audit.block_contents import find_hint, find_text
from findleaks.audit.block_type import describe_block_type, find_object_type
from findleaks.audit.conventions import describe_structure_of_block
from findleaks.audit.disguises import disguised_references
from findleaks.audit.in_flight import describe_in_flight
from findleaks.audit.managed_graph import FoundObject, find_object
from findleaks.audit.mapping_contents import find_stack_function
from findleaks.audit.references import SIGNAL_STACK
from findleaks.audit.thread_local_names import ThreadLocal, find_thread_local
from findleaks.audit.typed_places import field_at, name_in_pool
from findleaks.engine.terms import Kind, State
from findleaks.formatting import shorten, with_article
from findleaks.libc.stacks import thread_stacks
from findleaks.libc.thread_local import control_block, static_tls
from findleaks.results import amounts
from findleaks.results.addresses import AddressInfo, Block, MappedRegion, Member, SourceFunction, SourceLine, Word
from findleaks.results.sites import Site
from findleaks.session import Session
from findleaks.target.base import Range, Region, SourcePlace, Thread
from findleaks.target.ranges import range_at, region_at
from findleaks.unwind.stacks import own_function
from findleaks.value_classes import dataclass, replace

if TYPE_CHECKING:
    from findleaks.audit.joined_objects import JoinedObjects

STATES = {State.IN_USE: "in-use", State.CACHED: "cached", State.FREE: "free", State.METADATA: "metadata"}

# Bytes below a thread pointer that may be thread-local variables, if their size is unknown.
_TLS_GUESS = 0x1000


@dataclass(frozen=True)
class BlockInfo:
    """A block as commands print it.

    `kind`: "" if the block is not in use. `site`: the number of the allocation stack, 0 if none was
    recorded. `managed`: "Python object" if the type is the class of an object of that runtime, else
    ""."""

    index: int
    address: int
    size: int
    state: str
    kind: str
    allocator: str
    arena: str
    type: str
    hint: str
    site: int = 0
    managed: str = ""
    source: Optional[amounts.TypeSource] = None  # How the type is known; None without a type.
    is_sure: bool = False
    header: int = 0  # Bytes of the program's own header, before the typed part.

    def result(self) -> Block:
        """Return the block as a typed result."""
        return Block(
            self.address,
            self.size,
            cast(amounts.State, self.state),
            cast(amounts.Kind, self.kind) if self.kind else None,
            self.allocator,
            self.arena,
            self.site or None,
            self.type or None,
            self.hint or None,
            self.source,
            self.is_sure if self.source is not None else None,
            self.phrase(),
        )

    def phrase(self) -> str:
        """ "definite 48-byte block, osgeo::Ellipsoid", "… 64-byte block, Python object: dict" """
        what = self.kind or self.state
        if self.type.startswith(TYPE):
            return f"{what} {self.size:,}-byte {self.type}" + (f" that begins with {self.hint}" if self.hint else "")
        words = f"{what} {self.size:,}-byte block"
        detail = f"{self.managed}: {self.type}" if self.managed else self.type or self.hint
        if self.header:
            detail += f" after a header of {self.header} bytes"
        return f"{words}, {detail}" if detail else words


@dataclass(frozen=True)
class AddressDescription:
    """The description of one address."""

    address: int
    sort: str  # "block", "stack", "module", "allocator", "mapping" or "unmapped"
    phrase: str
    block: Optional[BlockInfo] = None
    region: Optional[Region] = None
    thread: Optional[int] = None
    symbol: str = ""
    root: bool = False
    # Numbers of the stacks that allocated or freed the block, one for each recorder.
    sites: Sequence[int] = ()
    source: Sequence[SourcePlace] = ()  # source lines, for an address in code
    member: str = ""  # the member that contains the address: "server.jobs.next"
    object: Optional[FoundObject] = None  # the object of a managed runtime at the address
    is_thread_local: bool = False  # whether a thread-local variable is at the address

    @property
    def extent(self) -> Optional[tuple[int, int]]:
        """Return the start of the block or object and its size in bytes; None if the address is in
        neither."""
        one = self.block or (self.object.object if self.object is not None else None)
        return None if one is None else (one.address, one.size)

    def result(
        self,
        sites: Optional[Sequence[Site]] = None,
        contents: str = "",
        words: Optional[Sequence[Word]] = None,
        members: Sequence[Member] = (),
    ) -> AddressInfo:
        """Return the description as a typed result. `sites`: the stacks to include, if the user
        wants them. `contents`, `words` and `members` describe the block or variable at the
        address."""
        block, region = self.block, self.region
        return AddressInfo(
            self.address,
            cast(Any, self.sort),
            self.phrase,
            self.root,
            block=None if block is None else block.result(),
            object=None if self.object is None else self.object.result(),
            offset=None if self.extent is None else self.address - self.extent[0],
            thread=self.thread,
            member=self.member or None,
            members=members or None,
            symbol=self.symbol or None,
            source=self._source(),
            region=None if region is None else MappedRegion(region.start, region.end, permissions(region), region.name or None),
            sites=sites,
            contents=contents or None,
            words=words,
        )

    def _source(self) -> Optional[SourceLine]:
        if not self.source:
            return None
        *inlined, own = self.source
        functions = [SourceFunction(one.function or None, one.file or None, one.line or None) for one in inlined]
        return SourceLine(own.file or None, own.line or None, functions)


def _format_source(source: Sequence[SourcePlace]) -> str:
    """Return source lines as text: " at io/parser.c:42, in list_add (inlined) at list.h:7"; "" if
    none is known."""
    if not source:
        return ""
    *inlined, own = ((one.function, one.short()) for one in source)
    parts = [f" at {own[1]}"] if own[1] else []
    parts += [f"in {name or '?'} (inlined)" + (f" at {place}" if place else "") for name, place in reversed(inlined)]
    return shorten(", ".join(parts) if parts[0].startswith(" ") else " " + ", ".join(parts), 2000) if parts else ""


def permissions(region: Region) -> str:
    """Return the access rights of a region: "rw-"."""
    return ("r" if region.readable else "-") + ("w" if region.writable else "-") + ("x" if region.executable else "-")


class Describer:
    """Describes addresses of one session. One describer is made for each command."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.target = session.target
        self._regions = list(self.target.regions())
        self._threads = {thread.tid: thread for thread in self.target.threads()}
        self._numbers = {tid: i for i, tid in enumerate(self._threads, 1)}
        self._stacks = thread_stacks(self.target)
        self._joined: Optional[JoinedObjects] = None

    def region(self, address: int) -> Optional[Region]:
        return region_at(self._regions, address)

    def block(self, index: int) -> BlockInfo:
        """Describe a block: state, kind, type, and a hint about its content."""
        directory = self.session.directory
        blocks = directory.blocks
        address, size, state = blocks.address(index), blocks.size(index), blocks.state(index)
        owned = directory.owner(address)
        used = state == State.IN_USE
        kind = self.session.graph().kind(index) if used else Kind.UNKNOWN
        found = describe_block_type(self.session, index)
        type_name = found.name if found is not None else ""
        hint = "" if (type_name and not type_name.startswith(TYPE)) or not used else find_hint(self.session, address, size)
        if used and address in self._signal_stacks:
            hint = f"looks like an {SIGNAL_STACK}"
        return BlockInfo(
            index,
            address,
            size,
            STATES[state],
            kind.name.lower() if used else "",
            owned.allocator.name if owned else "",
            owned.heap.arena if owned else "",
            type_name,
            hint,
            self.session.sites.of(address) if used else 0,
            self._phrase(index) if used else "",
            found.source if found is not None else None,
            found is not None and found.is_sure,
            found.header if found is not None else 0,
        )

    def _phrase(self, index: int) -> str:
        known = self.session.object_types
        return known.phrase if known is not None and find_object_type(self.session, index) is not None else ""

    def subject(self, address: int) -> AddressDescription:
        """Describe the address that a command is about. If it is in an object of Ruby, later calls
        of `answer` describe all objects of Ruby."""
        from findleaks.audit.joined_objects import find_joined_objects  # few processes run Ruby

        self._joined = find_joined_objects(self.session, address)
        return self.answer(address)

    def answer(self, address: int) -> AddressDescription:
        """Describe `address` as completely as possible."""
        region = self.region(address)
        joined = self._joined.locate(address) if self._joined is not None else None
        if self._joined is not None and joined is not None:
            answer = self._in_object(address, region, joined, False)
            return replace(answer, phrase=answer.phrase + self._joined.describe_variable(joined.object.block))
        index = self.session.directory.blocks.find(address)
        if index >= 0:
            return self._in_block(address, index, region)
        owned = self.session.directory.owner(address)
        if owned is not None:
            where = owned.allocator.locate(address) or ": ".join(filter(None, (owned.heap.arena, "allocator metadata, or free")))
            return AddressDescription(address, "allocator", f"{owned.allocator.name}, {where}", region=region)
        for allocator in self.session.directory.allocators:
            if any(start <= address < end for start, end in allocator.metadata()):
                where = allocator.locate(address) or "allocator metadata"
                return AddressDescription(address, "allocator", f"{allocator.name}, {where}", region=region, symbol=self.symbol(address))
        if region is None:
            return AddressDescription(address, "unmapped", "not mapped")
        for reserved in self.session.reserved:
            if range_at(reserved.ranges, address) is not None:
                phrase = f"reserved by {shorten(reserved.owner)} for growth: no memory is in use here yet"
                return AddressDescription(address, "mapping", phrase, region=region)
        return self._in_region(address, region)

    def _in_block(self, address: int, index: int, region: Optional[Region]) -> AddressDescription:
        block = self.block(index)
        offset = address - block.address
        member = field_at(self.session, address) if block.type else name_in_pool(self.session, address)
        owned = self.session.directory.owner(address)
        if block.state == STATES[State.METADATA] and owned is not None:
            member = owned.allocator.locate(address)
        place = f"{offset:,} byte{'' if offset == 1 else 's'} into " if offset else ""
        place = f"{member}, {place}" if member and offset else place
        what = with_article(block.phrase()) if offset else block.phrase()
        owner = f"{block.allocator}, {block.arena}" if block.arena else block.allocator
        phrase = f"{place}{what} at {block.address:#x} ({owner}){'' if block.managed else self._describe_managed(address)}"
        holds = describe_in_flight(self.session, block.address)
        phrase += f"; {holds}" if holds else ""
        named = find_thread_local(self.session, address) if block.kind and not block.type else None
        if named is not None and named.thread in self._numbers:
            phrase += f"; {named.label} ({named.module}, thread-local, thread {self._numbers[named.thread]})"
        structure = describe_structure_of_block(self.session, index) if block.kind else ""
        phrase += f"; {structure}" if structure else ""
        disguised = next(disguised_references(self.session, index), None)
        phrase += f"; referenced by a {disguised.name}" if disguised is not None else ""
        sites = [one.number for one in self.session.sites.list_all(block.address)]
        return AddressDescription(address, "block", phrase, block=block, region=region, sites=sites, member=member)

    def _in_object(self, address: int, region: Optional[Region], found: FoundObject, root: bool) -> AddressDescription:
        member = found.member_at(address)
        return AddressDescription(address, "mapping", found.phrase_at(address), region=region, root=root, member=member, object=found)

    def _in_region(self, address: int, region: Region) -> AddressDescription:
        root = range_at(self.session.roots, address) is not None
        found = find_object(self.session, address)
        if found is not None:
            return self._in_object(address, region, found, root)
        thread, stack = self._stack_of(address, region)
        if thread is not None and stack is not None:
            named = find_thread_local(self.session, address)
            phrase, is_local = self._on_stack(address, thread, stack, named), named is not None
            return AddressDescription(address, "stack", phrase, region=region, thread=thread.tid, root=root, is_thread_local=is_local)
        module = region_at(self.target.modules(), address)
        if module is not None:
            source = self.session.sources.at(address) if region.executable else ()
            symbol = self.symbol(address, source)
            name = shorten(module.path.rsplit("/", 1)[-1])
            section = "data" if region.writable else ("code" if region.executable else "read-only data")
            where = _format_source(source)
            member = "" if region.executable else field_at(self.session, address)
            shown = member or shorten(symbol)
            phrase = f"{shown}{where} ({name}, {section})" if shown else f"{name}+{address - module.bias:#x}{where}, {section}"
            return AddressDescription(address, "module", phrase, region=region, symbol=symbol, root=root, source=source, member=member)
        named = find_thread_local(self.session, address)
        thread, phrase = self._in_thread_local_storage(address, region, named)
        is_local = named is not None
        if thread is not None:
            return AddressDescription(address, "mapping", phrase, region=region, thread=thread.tid, root=root, is_thread_local=is_local)
        name = shorten(region.name) or "anonymous"
        managed = self._describe_managed(address)
        phrase = f"{name} mapping {region.start:#x}-{region.end:#x} {permissions(region)}, +{address - region.start:#x}{managed}"
        return AddressDescription(address, "mapping", phrase, region=region, root=root)

    def content(self, answer: AddressDescription) -> str:
        """Describe the content of an anonymous mapping: 'begins with "GET /"'. The result is ""
        for other memory and for content that is not recognised."""
        region = answer.region
        if answer.sort != "mapping" or region is None or not region.anonymous or not region.readable:
            return ""
        if region.name and not region.has_huge_pages:
            return ""
        from findleaks.audit.registered_buffers import describe_registered_buffers

        buffers = describe_registered_buffers(self.target, [Range(region.start, region.end)])
        if buffers:
            return f"contains {buffers}"
        beginning = find_hint(self.session, region.start, region.size)
        function = find_stack_function(self.session, region.start, region.end)
        if function or beginning not in ("", "zeros"):
            return f"contains a stack of {function}" if function else f"begins with {beginning}"
        # Most heaps of runtimes contain texts, which say nothing about the heap.
        text = "" if self._describe_managed(answer.address) else find_text(self.session, region.start, region.size)
        return f"contains {text}" if text else f"begins with {beginning}" if beginning else ""

    def _describe_managed(self, address: int) -> str:
        """Return "; Python object: dict" if a managed runtime has an object at the address, else
        ""."""
        texts = (runtime.describe(address) for runtime in self.session.runtimes)
        return next((f"; {shorten(text)}" for text in texts if text), "")

    def _on_stack(self, address: int, thread: Thread, stack: Range, named: Optional[ThreadLocal]) -> str:
        """Describe an address on a thread's stack. `named`: the thread-local variable there.
        From its upper end down, a stack contains the control block (at the thread pointer), static
        thread-local variables, and then frames."""
        who = f"thread {self._numbers[thread.tid]} (tid {thread.tid})"
        depth = address - thread.sp
        dead = "" if depth >= -self.target.arch.red_zone else ", dead: below the stack pointer"
        phrase = f"stack of {who}, sp{depth:+#x}{dead}"
        pointer = thread.thread_pointer
        if not stack.start <= pointer < stack.end or stack.end - pointer >= 0x2000:
            return phrase
        from_tp = address - pointer
        if named is not None and named.thread == thread.tid:
            return f"{named.label} ({named.module}, thread-local, {who}), tp{from_tp:+#x}"
        frames = thread.sp if stack.start <= thread.sp < pointer else stack.start
        if from_tp < 0 and address <= frames:
            return phrase
        local = f"thread-local data or control block of {who}, tp{from_tp:+#x}"
        size = 0 if from_tp >= 0 else self._below_pointer(pointer)
        if size is None or pointer - size <= frames:
            return f"{phrase}; or its thread-local data, tp{from_tp:+#x}" if from_tp >= -_TLS_GUESS else phrase
        return local if from_tp >= -size else phrase

    def _in_thread_local_storage(self, address: int, region: Region, named: Optional[ThreadLocal]) -> tuple[Optional[Thread], str]:
        """Describe an address in thread-local storage that is not on a stack, such as that of the
        main thread. Return the thread and the description; (None, "") for other addresses.
        `named`: the thread-local variable there."""
        for thread in self._threads.values():
            pointer = thread.thread_pointer
            who, from_tp = f"thread {self._numbers[thread.tid]} (tid {thread.tid})", address - pointer
            if named is not None and named.thread == thread.tid:
                return thread, f"{named.label} ({named.module}, thread-local, {who})"
            size = self._below_pointer(pointer) if pointer in region else None
            if size is not None and -size <= from_tp < (control_block(self.target, pointer).end - pointer):
                return thread, f"thread-local data or control block of {who}, tp{from_tp:+#x}"
        return None, ""

    def _below_pointer(self, pointer: int) -> Optional[int]:
        """Return the size in bytes of the memory below a thread pointer that contains thread-local
        variables or the control block; None if the size is unknown."""
        return pointer - control_block(self.target, pointer).start if self.target.arch.variables_above else self._static_tls

    @cached_property
    def _signal_stacks(self) -> frozenset[int]:
        return frozenset(self.session.signal_stacks)

    @cached_property
    def _static_tls(self) -> Optional[int]:
        return static_tls(self.target)

    def symbol(self, address: int, source: Sequence[SourcePlace] = ()) -> str:
        """Return "g_agent+0x38". The name is that of a symbol or, if there is none, of the function
        in `source`; "" if both are unknown."""
        name, start = own_function(self.target.symbolize(address), source[-1] if source else SourcePlace("", "", 0))
        return f"{name}+{address - start:#x}" if name and address != start else name

    def _stack_of(self, address: int, region: Region) -> tuple[Optional[Thread], Optional[Range]]:
        for tid, stack in self._stacks.items():
            if stack.start <= address < stack.end and tid in self._threads:
                return self._threads[tid], stack
        thread = self._on_region.get(region.start)
        return (thread, self.session.stack_at(thread.sp)) if thread is not None else (None, None)

    @cached_property
    def _on_region(self) -> dict[int, Thread]:
        """Map the start of each region to the first thread whose stack pointer is in the region.
        Only threads without a known stack are considered."""
        found: dict[int, Thread] = {}
        for thread in self._threads.values():
            region = self.region(thread.sp)
            if region is not None and thread.tid not in self._stacks:
                found.setdefault(region.start, thread)
        return found
