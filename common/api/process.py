"""A process, or the core of a process, for scripts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Literal, Optional, Union

from findleaks.allocators.described.file import read_pool_file
from findleaks.answers.addresses import identify
from findleaks.answers.caches import describe_caches
from findleaks.answers.leaks import find_leaks
from findleaks.answers.paths import find_path
from findleaks.answers.references import referrers
from findleaks.answers.roots import all_roots, leaked_roots, list_heaps, one_root
from findleaks.answers.runtimes import describe_runtimes
from findleaks.answers.snapshots import take_snapshot
from findleaks.answers.stacks import group_stacks
from findleaks.answers.verdict import account_for_memory
from findleaks.answers.warnings import warnings_of
from findleaks.api.block_list import Blocks, with_members
from findleaks.api.snapshots import Snapshot
from findleaks.arg_types import SizeRange, check_choice, parse_size_range
from findleaks.audit import suppressions as rules
from findleaks.audit.address_info import STATES
from findleaks.audit.block_rows import BlockFilters, check_allocator_name, parse_kinds, parse_states
from findleaks.audit.untyped_blocks import find_untyped
from findleaks.engine.terms import Kind
from findleaks.errors import TargetError, UsageError
from findleaks.results.addresses import AddressInfo, Block
from findleaks.results.caches import Caches
from findleaks.results.leaks import LeakGroup, Leaks
from findleaks.results.references import Path, References
from findleaks.results.roots import ManagedHeap, RetainedBlock, RetainedLeak, RetainedRoot
from findleaks.results.runtimes import Runtime
from findleaks.results.stacks import ThreadGroup
from findleaks.results.untyped import Untyped
from findleaks.results.verdict import Verdict
from findleaks.session import Session
from findleaks.session.block_directory import use_pool_file
from findleaks.session.known_types import check_hints
from findleaks.session.repeated_reads import close_and_collect
from findleaks.target.program import program_name
from findleaks.types.hint_files import read_hint_file
from findleaks.types.hints import AddressHint, UserHints

Address = Union[int, Block]
"""An address, or a block. A block means its start."""


class Process:
    """The state of a process at one time: a core file, a copy of a live process, or the process of
    a debugger. `findleaks.open`, `findleaks.attach` and `findleaks.current` return it.

    Computed data is cached until `close()`, which is called at the end of a `with` block. Every
    method raises `findleaks.TargetError` if memory that it needs cannot be read, and
    `findleaks.UsageError` if an argument is not valid for this process. Addresses are integers, and
    sizes are usable bytes."""

    def __init__(self, session: Session, is_valid: Callable[[], bool] = lambda: True) -> None:
        """`is_valid`: returns whether the process has not run since the session was opened."""
        self._open_session: Optional[Session] = session
        self._is_valid = is_valid

    def __enter__(self) -> Process:
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        self.close()

    def __repr__(self) -> str:
        session = self._open_session
        return "<Process: closed>" if session is None else f"<Process: {session.target.description}>"

    def close(self) -> None:
        """Free the memory and close the files that are used for the process. Existing results, and
        columns of blocks that were read before, can still be used."""
        session, self._open_session = self._open_session, None
        if session is not None:
            close_and_collect(session)

    @property
    def name(self) -> str:
        """The name of the program; "" if unknown."""
        return program_name(self._session.target)

    @property
    def pid(self) -> Optional[int]:
        """The process id; None if unknown."""
        return self._session.target.pid

    @property
    def warnings(self) -> list[str]:
        """Sentences about what limits the results so far. Each states the consequence."""
        return warnings_of(self._session)

    def use_types(
        self, debug_types: Optional[bool] = None, types: Optional[Mapping[Union[int, Block], str]] = None, hints: Optional[str] = None
    ) -> None:
        """Choose how the types of blocks are found. A change drops computed data.

        `debug_types`: True: read all debug information, False: none, None: what is small or in the
        cache. `types`: types that you know, by address: {0x55d0c0a012a0: "struct client"}. `hints`:
        a hint file. Raises UsageError if a type does not exist, or cannot be at its address."""
        session = self._session
        addresses = tuple(AddressHint(_start(address), name) for address, name in (types or {}).items())
        file = read_hint_file(hints) if hints else None
        session.use_debug_types(debug_types, UserHints(addresses, file) if addresses or file else None)
        check_hints(session)

    def use_pools(self, path: Optional[str]) -> None:
        """Divide blocks into the chunks of the pools that a pool file describes; None: do not. A
        change drops computed data. Raises UsageError if the file cannot be read."""
        use_pool_file(self._session, read_pool_file(path) if path else None)

    def untyped(self, limit: int = 0) -> Untyped:
        """Return the blocks from which the largest numbers of untyped blocks are reached. `limit`:
        the maximum number of such blocks (0: all). Raises TargetError if no debug information was
        found."""
        return find_untyped(self._session, limit)

    def leaks(
        self,
        kind: Optional[str] = None,
        by: Optional[Literal["type", "size", "kind", "site"]] = None,
        suppressions: Optional[str] = None,
    ) -> list[LeakGroup]:
        """Return leaked blocks in groups, the largest first.

        `kind`: "definite" or "possible"; None: both. `by`: "type", "size" or "kind" merges groups
        with the same type, size or kind; "site" groups by the recorded call stack that allocated
        the blocks; None groups by type and size. `suppressions`: a file of suppressions, as for
        `find --suppressions`. Raises UsageError for another word, or if the file is not valid."""
        return list(self.find(kind, by, suppressions).groups)

    def find(
        self,
        kind: Optional[str] = None,
        by: Optional[Literal["type", "size", "kind", "site"]] = None,
        suppressions: Optional[str] = None,
    ) -> Leaks:
        """Return the whole result of `find`: the groups of `leaks`, the totals of all kinds, and
        the limits of the result (`trusted`, `unread`, `notes`). The arguments and errors are those
        of `leaks`."""
        words = ("definite", "possible")
        kinds = {Kind[check_choice(word, words, "kind").upper()] for word in ([kind] if kind is not None else words)}
        if by is not None:
            check_choice(by, ("type", "size", "kind", "site"), "grouping")
        return find_leaks(self._session, kinds, by, suppressions=rules.load_suppressions(suppressions) if suppressions else None).result

    def blocks(
        self,
        kind: Optional[str] = None,
        state: str = "in-use",
        size: Union[int, str, tuple[int, int], None] = None,
        type: Optional[str] = None,  # noqa: A002
        allocator: Optional[str] = None,
        site: int = 0,
        limit: int = 0,
        largest: bool = False,
    ) -> Blocks:
        """Return the blocks that pass all filters, by address, or the `largest` first.

        `kind`: "reachable", "possible", "definite", "indirect", "leaked" (definite and indirect),
        or several of these, separated by commas. `state`: "in-use", "cached", "free", "metadata",
        "all". `size`: usable bytes, lowest and highest usable bytes, or a range such as "16-64" or
        "4k-". `type`: a pattern with * and ?. `allocator`: the name of an allocator. `site`: the
        number of an allocation site. `limit`: the maximum number of blocks (0: all). Raises
        UsageError if a filter is not valid, or if this process has no such allocator or site."""
        session = self._session
        kinds = parse_kinds(kind)
        check_choice(state, [*STATES.values(), "all"], "state")
        allocator = check_allocator_name(session, allocator)
        if site and not 1 <= site <= len(session.sites):
            raise UsageError(f"no site {site}: {len(session.sites)} allocation stacks are recorded in this process")
        return Blocks(session, BlockFilters(kinds, parse_states(state), _sizes(size), type, allocator, site), limit, largest)

    def block_at(self, address: int) -> Block:
        """Return the block that contains `address`. Raises UsageError if no block contains it. To
        avoid the exception, use `whatis(address).block`, which is then None."""
        found = identify(self._session, [address], words=None)[0].result
        if found.block is None:
            raise UsageError(f"{address:#x} is in no block: {found.text}")
        return with_members(self._session, found.block)

    def whatis(self, address: Address, words: int = 16) -> AddressInfo:
        """Describe what is at `address`: a block, a stack, a symbol, allocator metadata, or a
        mapping. `words`: number of words of a block or variable to describe (0: all)."""
        (found,) = identify(self._session, [_start(address)], words=words)
        if found.result.block is not None:
            with_members(self._session, found.result.block)
        return found.result

    def referrers(self, address: Address, exact: bool = False, limit: int = 0) -> References:
        """Return every word that refers to the block that contains `address`. `exact`: only words
        that equal `address`. `limit`: number of references to describe (0: all); `count` in the
        result is the number of all references. An address that no word refers to has no references;
        this is not an error."""
        return referrers(self._session, _start(address), exact, limit)

    def path(self, address: Address, limit: int = 0) -> Path:
        """Return the shortest chain of references from a root to the block that contains `address`.
        If the block is leaked, the chain begins at its leak head. `limit`: number of steps in the
        result (0: all). Raises UsageError if `address` is in neither a block nor a managed
        object."""
        return find_path(self._session, _start(address), limit).result

    def roots(self, name: Union[str, Address, None] = None, depth: int = 2, limit: int = 0) -> list[Union[RetainedRoot, RetainedBlock]]:
        """Return roots, and what each retains, the largest first.

        `name`: the name of roots, a pattern, or the address of a root or block; None: all roots.
        `depth`: levels of fields below each root. `limit`: number of roots, and of fields of each
        root (0: all). In a list of all roots, only the first ten have fields. Raises UsageError if
        there is no such root, or if the block is not in use."""
        if name is None:
            found, _ = all_roots(self._session, depth, limit or 10, limit)
        else:
            found, _ = one_root(self._session, name if isinstance(name, str) else hex(_start(name)), depth, limit)
        return [row for row in found.roots if isinstance(row, (RetainedRoot, RetainedBlock))]

    def heap_roots(self, limit: int = 10) -> list[ManagedHeap]:
        """Return the managed heaps of Go and of a JVM with their roots, the largest first:
        variables, stacks, class loaders. Each has the objects that only this root retains. `limit`:
        number of roots of each heap that have types (0: all)."""
        return list_heaps(self._session, limit, 0)

    def leaked_roots(self, depth: int = 2, limit: int = 10) -> list[RetainedLeak]:
        """Return leak heads, and what each retains, the largest first. `limit`: number of leak
        heads (0: all)."""
        found, _ = leaked_roots(self._session, depth, limit)
        return [row for row in found.roots if isinstance(row, RetainedLeak)]

    def verdict(self, residency: str = "") -> Verdict:
        """Return all memory by owner, and what is wrong with it. `residency`: a file that `map
        --save-residency` wrote, for a core that does not show which pages were resident. Raises
        FindleaksError if the file is damaged, or belongs to another process."""
        return account_for_memory(self._session, residency).result

    def threads(self, function: str = "", module: str = "", lines: bool = True) -> Sequence[ThreadGroup]:
        """Return threads grouped by identical call stacks, the largest groups first.

        `function`: only stacks with this function (a pattern). `module`: only stacks with a frame
        in this module. `lines`: whether to read files, lines and inlined functions from debug
        information."""
        return group_stacks(self._session, function, module, lines=lines).result.stacks

    def runtimes(self, native: bool = True) -> Sequence[Runtime]:
        """Return managed runtimes and their objects by type. `native`: whether to look for leaked
        objects and for the native memory that objects retain, which takes longer."""
        return describe_runtimes(self._session, native=native).result.runtimes

    def caches(self, allocator: Optional[str] = None, by_arena: bool = False, sites: bool = False) -> Caches:
        """Return size classes, arenas and thread caches of all allocators, or of the one named
        `allocator`. Sizes are usable bytes. Raises UsageError if there is no such allocator.
        `by_arena`: whether there is a row for each size class of each arena. `sites`: whether to
        include the call stacks that allocated the blocks."""
        return describe_caches(self._session, check_allocator_name(self._session, allocator), by_arena, sites=sites).result

    def snapshot(self, name: str = "") -> Snapshot:
        """Return the current figures of the process, for `findleaks.diff` and `Snapshot.save`."""
        return Snapshot(take_snapshot(self._session, name or self._session.target.description))

    @property
    def _session(self) -> Session:
        session = self._open_session
        if session is None:
            raise TargetError("the process is closed: use it before the end of its `with` statement")
        if not self._is_valid():
            raise TargetError("the process has run since findleaks.current(): call it again")
        if session.target.lacks:
            raise TargetError(session.target.lacks)
        return session


def _start(address: Address) -> int:
    return address.address if isinstance(address, Block) else address


def _sizes(size: Union[int, str, tuple[int, int], None]) -> Optional[SizeRange]:
    if size is None:
        return None
    if isinstance(size, str):
        return parse_size_range(size)
    return SizeRange(size, size) if isinstance(size, int) else SizeRange(*size)
