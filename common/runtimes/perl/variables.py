"""Name the variables of a Perl program, and the elements of arrays, hashes and pads.

Sources: gv.h (struct gp), hv.h, pad.h, cv.h, mg.h (struct magic) of Perl 5.36 to 5.40, 64-bit."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from functools import cached_property
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.allocators.perl.layout import ARRAY, CODE, FREE, GLOB, HASH, LAST_TYPE, LVALUE, MAGIC
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import NO_BLOCK
from findleaks.runtimes.base import Variable
from findleaks.runtimes.perl import values as v
from findleaks.runtimes.perl.census import Census, Special
from findleaks.runtimes.perl.structures import ANON, UNIQUE, XSUB, Sub

LARGE = 4096  # least bytes of a string that is reported as a variable
MOST = 1 << 14  # most variables
MOST_PACKAGES = 1 << 16
SHOWN = 40  # characters of a key that are shown
_SCALAR, _HASH, _ARRAY = 0, 32, 40  # offsets in struct gp
_MAGIC_TYPE, _MAGIC_OBJECT = 18, 32  # offsets of mg_type and mg_obj in struct magic
_TIED = b"P"  # PERL_MAGIC_tied


class Names:
    """Names variables and elements."""

    def __init__(self, memory: Memory, blocks: Blocks, census: Census) -> None:
        self._memory, self._blocks, self._census = memory, blocks, census
        self._structures = census.structures

    def variables(self) -> Iterator[Variable]:
        """Yield package variables, then lexical ones. Each object is the value of one variable."""
        seen: set[int] = set()
        for name, place in self._places():
            if len(seen) >= MOST:
                return
            made = self._variable(name, place)
            if made is not None and made.value not in seen:
                seen.add(made.value)
                yield made

    def _places(self) -> Iterator[tuple[str, int]]:
        """Yield names of variables with the addresses of the references to their values."""
        stashes = [one for one in self._census.hashes if one.flags & v.OFFSET and self._structures.package(one.address) == "main"]
        stack = [(one.address, "") for one in stashes]
        seen: set[int] = set()
        while stack and len(seen) < MOST_PACKAGES:
            stash, package = stack.pop()
            if stash in seen:
                continue
            seen.add(stash)
            words = self._memory.words(stash, 3) or (0, 0, 0)
            for key, glob, _ in self._structures.entries(words[0], words[2]):
                table = self._memory.word(glob + 16) if self._flags(glob) & FREE == GLOB else None
                if table and key.endswith("::"):
                    stack.append((self._memory.word(table + _HASH) or 0, f"{package}{key}" if key != "main::" else ""))
                elif table:
                    name = f"{package or 'main::'}{key}"
                    yield from ((f"{sigil}{name}", table + at) for sigil, at in (("$", _SCALAR), ("%", _HASH), ("@", _ARRAY)))
        yield from self._lexical_places(False)
        yield from self._lexical_places(True)

    def _lexical_places(self, outer: bool) -> Iterator[tuple[str, int]]:
        """Yield lexical variables. `outer`: False for the variables that the program and named subs
        declare; True for those that named subs use, and that a file or an outer sub declares.

        Closures are left out, because this module cannot determine whether they are leaked."""
        for one, sub in self._census.subs:
            if sub.flags & (XSUB | ANON) or not sub.padlist:
                continue
            if sub.flags & UNIQUE and one.address not in self._census.interpreter_words:
                continue
            where = self._describe_sub(one, sub, outer)
            for pad in self._structures.pads(sub.padlist)[:1]:
                table = self._memory.word(pad + 16) or 0
                names = self._structures.pad_names(sub.padlist) if table else ()
                yield from ((f"my {name}{where}", table + 8 * number) for number, name, is_outer in names if is_outer == outer)

    def _describe_sub(self, one: Special, sub: Sub, outer: bool) -> str:
        """Return where a variable of a sub is declared, as a phrase that follows its name."""
        place = self._structures.place(sub) or self._files.get(one.address, "")
        file = place.rpartition(":")[0] or place
        if outer and file:
            return f" in {file}"
        name = self._structures.sub_name(sub)
        return f" of {name}" if name else f" in {file}" if file else ""

    @cached_property
    def _files(self) -> dict[int, str]:
        """The file of each sub or file that contains other subs (CvOUTSIDE)."""
        return {sub.outside: self._structures.place(sub) for _, sub in self._census.subs if sub.outside and not sub.flags & XSUB}

    def _flags(self, value: int) -> int:
        """Return the flags of the value at an address; FREE if there is none."""
        index = self._blocks.find(value) if value else -1
        known = index >= 0 and self._blocks.address(index) == value and self._census.found[index] not in (v.NO_VALUE, v.BODIES)
        flags = self._memory.int32(value + 12) if known else None
        return flags if flags is not None else FREE

    def _variable(self, name: str, place: int, is_tied: bool = False) -> Optional[Variable]:
        """Return the variable to whose value the word at `place` refers; None if the value is
        small. The value of a tied variable is the object that implements it. `is_tied`: whether the
        word refers to such an object."""
        value = self._memory.word(place) or 0
        flags = self._flags(value)
        through = flags & FREE <= LVALUE and flags & FREE != GLOB and bool(flags & v.REFERENCE)
        if through:
            place, value = value + 16, self._memory.word(value + 16) or 0
            flags = self._flags(value)
        words = self._memory.words(value, 3) if flags & FREE <= LAST_TYPE else None
        if words is None:
            return None
        what = self._census.names[self._census.found[self._blocks.find(value)]]
        length = self._memory.word(words[0] + 16) if flags & FREE in (ARRAY, HASH) else None
        if flags & FREE == ARRAY and length is not None:
            length = length + 1 & self._memory.arch.mask
        tie = self._tie(words[0]) if length == 0 and flags & v.MAGICAL and not is_tied else 0
        if tie:
            return self._variable(name, tie, True)
        if length is not None and (not length or (flags & FREE == HASH and flags & v.OFFSET and self._structures.package(value))):
            return None  # It is empty, or it is a package.
        found = self._blocks.lookup(words[2])
        large = flags & v.TEXT and flags & FREE <= MAGIC and found is not None and found[2] >= LARGE
        if length is None and not large and not (through and (flags & v.BLESSED or flags & FREE == CODE)):
            return None
        table = found[1] if found is not None and (large or length is not None) else 0
        return Variable(name, place, value, table, what, length, "elements" if length is not None else "")

    def _tie(self, body: int) -> int:
        """Return the address of the word that refers to the object of a tied array or hash; 0 if
        the variable with this body is not tied."""
        magic = self._memory.word(body + 8) or 0
        if magic and self._memory.read(magic + _MAGIC_TYPE, 1) == _TIED:
            return magic + _MAGIC_OBJECT
        return 0

    def member(self, address: int) -> str:
        """Return the name of the word at an address: an element of an array or a hash, or a
        variable in a pad; "" if it is none."""
        index = self._blocks.find(address)
        if index < 0:
            return ""
        if self._census.found[index] == v.ENTRIES_OF_HASHES and address - self._blocks.address(index) == 16:
            key = self._structures.key(self._memory.word(address - 8) or 0)
            return f"{{{key if len(key) <= SHOWN else key[:SHOWN] + '…'}}}" if key else ""
        table, names = self._tables.get(index, (0, 0))
        if not table or address < table:
            return ""
        number = (address - table) // 8
        if not names:
            return f"[{number:,}]"
        return next((f"variable {name}" for place, name, _ in self._structures.pad_names(names) if place == number), "")

    @cached_property
    def _tables(self) -> dict[int, tuple[int, int]]:
        """By the index of the block that contains an array's elements: the address of the first
        element; and the address of the list of pads of the sub if the array is a pad, else 0."""
        tables = array("Q", (one.union for one in self._census.arrays))
        found = {index: (table, 0) for index, table in zip(self._blocks.find_all(tables)[0], tables) if index != NO_BLOCK}
        for _, sub in self._census.subs:
            for pad in self._structures.pads(sub.padlist) if not sub.flags & XSUB else ():
                table = self._memory.word(pad + 16)
                if table:
                    found[self._blocks.find(table)] = table, sub.padlist
        return found
