"""Read all values in Perl's arenas: their types, and which words are references.

Sources: sv.h, sv.c (sv_chop, Perl_sv_add_backref), av.h, cv.h, mg.h, op.h, intrpvar.h of Perl 5.36
to 5.40."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from findleaks.allocators.base import size_at
from findleaks.allocators.bulk import read_records
from findleaks.allocators.memory import Memory
from findleaks.allocators.perl.arenas import Values
from findleaks.allocators.perl.instance import PerlArenas
from findleaks.allocators.perl.layout import (
    ARRAY,
    CODE,
    ENTRIES,
    FORMAT,
    FREE,
    HASH,
    HEAD,
    INTEGER,
    LVALUE,
    MAGIC,
    NAMED_HASHES,
    STRING,
    Interpreter,
)
from findleaks.engine.contract import Blocks, Engine
from findleaks.engine.terms import LAST_WORD, NO_BLOCK, Totals
from findleaks.runtimes.perl import values as v
from findleaks.runtimes.perl.shared_keys import list_keys, read_buckets
from findleaks.runtimes.perl.structures import ANON, AUX, CODE_BYTES, XSUB, Structures, Sub, read_sub
from findleaks.target.base import Range, Target
from findleaks.target.ranges import range_at
from findleaks.value_classes import NamedTuple

_BACK_REFERENCES = ord("<")  # PERL_MAGIC_backref
_MOST_MAGIC = 64  # structures MAGIC of one value
_MOST_TYPES = 1 << 16  # types that are distinguished
_OTHERS = "(of further types)"
_TEMPORARY = (0x00020000, 0x00040000, 0x00060000)  # values of v.TEMPORARY without v.TEXT
_WITH_BUFFERS = (v.STRINGS, v.ARRAYS, v.HASHES)


class Special(NamedTuple):
    """A value whose body is read. `block` is the index of its block."""

    body: int
    address: int
    block: int
    flags: int
    union: int


class Census:
    """All values in use.

    - `found` has the number of the type of each block's value, or NO_VALUE ("I").
    - `counts` has the reference count of each block's value ("I").
    - `patterns` has an index into EXCLUSIONS for each block.
    - `names` are the names of the types.
    - `subs` are the subs, `arrays` and `hashes` the values of these types.
    - `interpreter_words` are the words of the interpreter's variables.
    - `roots` are blocks in use that no word refers to by their start, or that only lists of all
      values refer to.
    - `dead` are unused ends of large blocks and of the interpreter's stacks. Such ends may
      contain stale words."""

    def __init__(self, target: Target, engine: Engine, blocks: Blocks, arenas: PerlArenas) -> None:
        self._target, self._engine, self._blocks, self._arenas = target, engine, blocks, arenas
        self._memory = Memory(target)
        self.structures = Structures(self._memory)
        self.found = array("I", [v.NO_VALUE]) * len(blocks)
        self.patterns = bytearray(len(blocks))
        self.names = list(v.NAMES)
        self.counts = array("I", bytes(4 * len(blocks)))
        self._bytes = array("Q", bytes(8 * len(blocks)))
        self._numbers: dict[str, int] = {}
        self.roots: list[int] = []
        self.dead: list[Range] = []
        special = self._read_values()
        self.arrays = [one for one in special if one.flags & FREE == ARRAY]
        self.hashes = [one for one in special if one.flags & FREE == HASH]
        self.subs: list[tuple[Special, Sub]] = []
        self._mark_arenas()
        self._read_arrays()
        self._read_subs([one for one in special if one.flags & FREE in (CODE, FORMAT)])
        self._read_classes([one for one in special if one.flags & v.BLESSED and one.flags & FREE >= MAGIC])
        self._leave_out_back_references([one for one in special if one.flags & v.MAGICAL and one.flags & FREE >= MAGIC])
        self._keep_chopped_strings(one for one in special if one.flags & v.OFFSET and one.flags & FREE <= LVALUE)
        self._read_interpreter()

    @cached_property
    def totals(self) -> Sequence[Totals]:
        """Number and bytes of the values of each type. The bytes include bodies, strings, and the
        tables of arrays and hashes."""
        numbers = array("Q", self.found)
        counts = dict(zip(*self._engine.sum_by_value(numbers, array("Q"))))
        sizes = dict(zip(*self._engine.sum_by_value(numbers, self._bytes)))
        return [Totals(counts.get(number, 0), sizes.get(number, 0)) for number in range(len(self.names))]

    def _read_values(self) -> list[Special]:
        """Set the type and the pattern of each value. Returns the values whose bodies are read."""
        kinds = v.Kinds(self._arenas.sizes)
        special: list[Special] = []
        looked, types = v.MAGICAL | v.BLESSED | v.OFFSET, (v.ARRAYS, v.HASHES, v.SUBS, v.FORMATS)
        counted = bytearray(len(self._blocks))
        for values in self._arenas.values():
            indices, _ = self._blocks.find_all(values.addresses)
            buffers, sizes = self._blocks.find_all(values.unions)
            columns = zip(values.addresses, values.bodies, values.counts, values.flags, values.unions, indices, buffers, sizes)
            for address, body, count, flags, union, index, buffer, size in columns:
                number, pattern, own = kinds[flags]
                if number == v.NO_VALUE or index == NO_BLOCK:
                    continue
                self.found[index] = number
                self.patterns[index] = pattern
                self.counts[index] = count
                if number in _WITH_BUFFERS and buffer != NO_BLOCK and not counted[buffer]:
                    counted[buffer] = 1  # Several strings may share their characters.
                    own += size
                self._bytes[index] = own
                if flags & looked or number in types:
                    special.append(Special(body, address, index, flags, union))
            self._read_strings(values, buffers)
            self._keep_memory(values)
        return special

    def _read_strings(self, values: Values, buffers: Sequence[int]) -> None:
        """Leave out the unused ends of strings. The third word of a body is the length. Extensions
        store structures in values that have memory for characters but are not strings. Operations,
        variables and numbers contain no structures: the memory after them has the previous content
        of the block."""
        self._leave_out_numbers(values, buffers)
        columns = zip(values.bodies, values.flags, values.unions, buffers)
        plain = [one for one in columns if one[3] != NO_BLOCK and STRING <= one[1] & FREE <= MAGIC and not one[1] & v.REFERENCE]
        strings = sorted((body + 16, union) for body, flags, union, _ in plain if flags & v.TEXT)
        data, missing = read_records(self._target, self._engine, [place for place, _ in strings], 8)
        lengths = zip(self._target.arch.words(data), strings)
        ends = [(union, union + length) for number, (length, (_, union)) in enumerate(lengths) if number not in missing]
        unused = ((union, union) for _, flags, union, _ in plain if flags & (v.TEXT | v.TEMPORARY) in _TEMPORARY or v.is_number(flags))
        self._end_blocks([*ends, *unused])

    def _leave_out_numbers(self, values: Values, buffers: Sequence[int]) -> None:
        """Leave out integers that are the address of a value, such as the results of refaddr(). An
        integer has no part in the reference count of a value. Integers that are other addresses
        may be pointers of an extension."""
        slots = [Range(one.start, one.start + HEAD * one.slots) for one in self._arenas.interpreter.values]
        for address, flags, union, buffer in zip(values.addresses, values.flags, values.unions, buffers):
            if buffer != NO_BLOCK and flags & FREE == INTEGER and not flags & v.REFERENCE and range_at(slots, union) is not None:
                index = self._blocks.find(address)
                if index >= 0:
                    self.patterns[index] = v.NO_WORD

    def _keep_memory(self, values: Values) -> None:
        """Keep values without text that have memory for it, and were never strings or numbers.
        Extensions use such memory for data (MY_CXT, DBI), and refer to it, not to the value."""
        columns = zip(values.bodies, values.addresses, values.counts, values.flags, values.unions)
        found = sorted((body + 16, address) for body, address, count, flags, union in columns if flags == STRING and count == 1 and union)
        data, missing = read_records(self._target, self._engine, [place for place, _ in found], 8)
        lengths = enumerate(self._target.arch.words(data))
        self.roots += (found[number][1] for number, length in lengths if not length and number not in missing)

    def _end_blocks(self, ends: Sequence[tuple[int, int]]) -> None:
        """Exclude the ends of blocks from the scan. `ends` has pairs: the start of a block, and an
        address in it. The word that contains this address and all following words are excluded. A
        pair is ignored if no block begins at the first address."""
        blocks, patterns = self._blocks, self.patterns
        starts = array("Q", (start for start, _ in ends))
        indices, sizes = blocks.find_all(starts)
        before, _ = blocks.find_all(array("Q", (max(start, 1) - 1 for start in starts)))
        for (start, end), index, size, previous in zip(ends, indices, sizes, before):
            used = end - start >> 3
            if index in (previous, NO_BLOCK) or not 0 <= used < size >> 3:
                continue
            if patterns[index] == 0 or v.FIRST_TAIL <= patterns[index] < v.FIRST_TAIL + used:
                if used <= LAST_WORD:
                    patterns[index] = v.FIRST_TAIL + used
                else:
                    self.dead.append(Range(start + 8 * used, start + (size & -8)))

    def _mark_arenas(self) -> None:
        """Set the type of bodies. Keep the arenas of bodies without pointers, and the blocks that
        list the arenas."""
        blocks = self._blocks
        for one in self._arenas.interpreter.bodies:
            if one.type in self._arenas.sizes:
                first, last = blocks.at_or_after(one.start), blocks.at_or_after(one.start + one.size)
                number = v.ENTRIES_OF_HASHES if one.type == ENTRIES else v.BODIES
                self.found[first:last] = array("I", [number]) * (last - first)
                if one.type == NAMED_HASHES:
                    self.patterns[first:last] = bytes([v.NO_BACK_REFERENCES]) * (last - first)
        for index in blocks.find_all(self._arenas.free_bodies)[0]:
            if index != NO_BLOCK:
                self.found[index] = v.NO_VALUE
        for address in (*(one.start for one in self._arenas.plain), *self._arenas.interpreter.sets):
            self._keep(address)

    def _keep(self, address: int) -> None:
        """Keep the block at an address. Its words are not references."""
        index = self._blocks.find(address)
        if index >= 0:
            self.patterns[index] = v.NO_WORD
            self.roots.append(self._blocks.address(index))

    def _keep_chopped_strings(self, values: Iterable[Special]) -> None:
        """Keep the strings whose beginning was removed: the union in the value (sv_u) refers to
        their present beginning, which is inside the block."""
        self.roots += (self._blocks.address(index) for index in (self._blocks.find(one.union) for one in values) if index >= 0)

    def _bodies(self, values: Sequence[Special], words: int) -> Iterator[tuple[Special, Sequence[int]]]:
        """Yield values with the first words of their bodies, by address of the body. Bodies that
        cannot be read are left out."""
        ordered = sorted(values)
        data, missing = read_records(self._target, self._engine, [one.body for one in ordered], 8 * words)
        read = self._target.arch.words(data)
        for number, one in enumerate(ordered):
            if number not in missing:
                yield one, read[number * words : (number + 1) * words]

    def _read_arrays(self) -> None:
        """Leave out the unused ends of arrays and of the tables of hashes. The arrays that are the
        interpreter's stacks do not count their elements."""
        mask = self._memory.arch.mask
        arrays = (one for one in self._bodies(self.arrays, 5) if one[0].flags & v.OWNED)
        ends = [(words[4], one.union + 8 * (words[2] + 1 & mask)) for one, words in arrays]
        self._end_blocks([*ends, *((one.union, one.union + 8 * (words[3] + 1)) for one, words in self._bodies(self.hashes, 4))])

    def _add_dead(self, used: int, end: int) -> None:
        """Add the unused part of a stack to `dead`, if it is in one block."""
        found = self._blocks.lookup(used) if used < end else None
        if found is not None and end <= found[1] + found[2]:
            self.dead.append(Range(used, end))

    def _read_subs(self, subs: Sequence[Special]) -> None:
        """Read the subs, give closures a type each, and set the type of pads."""
        names: set[int] = set()
        tables: list[tuple[int, int]] = []
        for one, words in self._bodies(subs, CODE_BYTES // 8):
            sub = read_sub(words, self._memory)
            self.subs.append((one, sub))
            if sub.flags & XSUB:
                continue
            number = v.PADS
            if sub.flags & ANON:
                place = self.structures.place(sub)
                name = f"closure at {place}" if place else "closure"
                self.found[one.block] = self._number(name)
                number = self._number(f"pad of {name}")
            names.add(self.structures.name_list(sub.padlist))
            tables.append(self.structures.table_of_pads(sub.padlist))
            for pad in self.structures.pads(sub.padlist):
                index = self._blocks.find(pad)
                if index >= 0 and self.found[index] == v.ARRAYS and self._blocks.address(index) == pad:
                    self.found[index] = number
        self._read_names(names)
        self._end_blocks([(table, table + 8 * used) for table, used in tables])
        self._keep_operations(address for _, sub in self.subs if not sub.flags & XSUB for address in (sub.root, sub.start))

    def _read_names(self, lists: Iterable[int]) -> None:
        """Leave out the unused ends of lists of names. If a variable belongs to an outer sub, its
        name (struct padname) refers to the characters in the outer name, so keep the outer name."""
        names: set[int] = set()
        tables = [self.structures.table_of_names(one) for one in lists]
        self._end_blocks([(table, table + 8 * used) for table, used in tables])
        for table, used in tables:
            names.update(self._memory.words(table, used) or ())
        ordered = sorted(names - {0})
        data, missing = read_records(self._target, self._engine, ordered, 8)
        texts = self._target.arch.words(data)
        owners, own = self._blocks.find_all(texts)[0], self._blocks.find_all(ordered)[0]
        others = {owner for number, (owner, index) in enumerate(zip(owners, own)) if owner != index and number not in missing}
        self.roots += (self._blocks.address(owner) for owner in others - {NO_BLOCK})

    def _keep_operations(self, addresses: Iterable[int]) -> None:
        """Keep the blocks of operations (struct opslab) that contain these addresses. Their second
        word refers to the first block of their chain, and that block's second word to itself."""
        for index in set(self._blocks.find_all(array("Q", addresses))[0]) - {NO_BLOCK}:
            start = self._blocks.address(index)
            first = self._memory.word(start + 8)
            if first and self._memory.word(first + 8) == first:
                self.roots.append(start)

    def _number(self, name: str) -> int:
        """Return the number of the type of a closure or class."""
        name = name if name in self._numbers or len(self._numbers) < _MOST_TYPES else _OTHERS
        if name not in self._numbers:
            self._numbers[name] = len(self.names)
            self.names.append(name)
        return self._numbers[name]

    def _read_classes(self, blessed: Sequence[Special]) -> None:
        """Set the type of values that are blessed. The first word of a body is the stash."""
        names: dict[int, str] = {}
        for one, (stash,) in self._bodies(blessed, 1):
            if stash not in names:
                names[stash] = self.structures.package(stash)
            if names[stash] and self.found[one.block] < v.CLOSURES:
                self.found[one.block] = self._number(names[stash])

    def _leave_out_back_references(self, magical: Sequence[Special]) -> None:
        """Leave out the references from a value to those that refer to it weakly. They are in the
        body of a hash, or else in a MAGIC (the second word of the body). Several are in an array,
        to which nothing else refers."""
        holders = [words[AUX // 8 + 1] for one, words in self._bodies([one for one in self.hashes if one.flags & v.OFFSET], AUX // 8 + 2)]
        for _, words in self._bodies(magical, 2):
            magic = words[1]
            for _ in range(_MOST_MAGIC):
                members = self._memory.words(magic, 5) if magic else None
                if members is None:
                    break
                if members[2].to_bytes(8, self._memory.arch.byteorder)[2] == _BACK_REFERENCES:
                    index = self._blocks.find(magic)
                    if index >= 0:
                        self.patterns[index] = v.NO_OBJECT
                    holders.append(members[4])
                magic = members[0]
        arrays = {one.address: one for one in self.arrays}
        for one in (arrays[address] for address in set(holders) & arrays.keys()):
            self._keep(one.address)
            self.patterns[one.block] = 0
            self._keep(one.union)

    def _read_interpreter(self) -> None:
        """Record the operations that the interpreters refer to, and add the unused parts of their
        stacks to `dead`."""
        variables = self._arenas.variables()
        self.interpreter_words = frozenset(variables)
        self._keep_operations(variables)
        for one in self.hashes:
            if one.address in self.interpreter_words:
                size = size_at(self._blocks, one.union)
                entries = read_buckets(self._memory, self._memory.word(one.address) or 0, one.union, size)
                self._end_blocks(list(list_keys(self._target, self._engine, entries)))
        for interpreter in self._arenas.interpreters:
            self._read_unused_stacks(interpreter)

    def _read_unused_stacks(self, interpreter: Interpreter) -> None:
        """Add the unused parts of an interpreter's stacks to `dead`: arguments, contexts, temporary
        values, and saved values.

        The members of struct interpreter, as words: stack_sp 0, stack_max 4, savestack 5,
        savestack_ix and savestack_max 6, tmps_stack 9, tmps_ix 10, tmps_max 12. curstackinfo is the
        fourth word before sv_arenaroot."""
        words = self._memory.words(interpreter.struct, _STACKS) if interpreter.struct else None
        if words is None:
            return
        self._add_dead(words[0] + 8, words[4] + 8)
        used, most = self._memory.halves(words[6])
        self._add_dead(words[5] + 8 * used, words[5] + 8 * most)
        self._add_dead(words[9] + 8 * (words[10] + 1 & self._memory.arch.mask), words[9] + 8 * words[12])
        self._read_stacks(self._memory.word(interpreter.address - 32) or 0)

    def _read_stacks(self, current: int) -> None:
        """Add the unused parts of the stacks of arguments and of contexts to `dead`. `current` is
        the current PERL_SI. The PERL_SIs form a list: those before `current` are in use, those
        after it are unused."""
        arrays = {one.address: one for one in self.arrays}
        at, used = current, True
        for _ in range(_MOST_STACKS):
            info = self._memory.members(at, "PPPPII") if at else None
            if info is None:
                break
            stack, contexts, before, after, top, most = info
            index = self._blocks.find(contexts)
            if index >= 0 and most < self._blocks.size(index):
                size = self._blocks.size(index) // (most + 1) & -8  # bytes of a PERL_CONTEXT
                self._end_blocks([(contexts, contexts + (size * (top + 1 & 0xFFFFFFFF) if used else 0))])
            if at != current and stack in arrays:
                for one, words in self._bodies([arrays[stack]], 3):
                    self._end_blocks([(one.union, one.union + (8 * (words[2] + 1 & self._memory.arch.mask) if used else 0))])
            if used and not before:
                at, used = self._memory.word(current + 24) or 0, False
            else:
                at = before if used else after


_STACKS = 13  # words of struct interpreter with the stacks
_MOST_STACKS = 1 << 10
