"""Find the collections that keep classes without a name alive: those that contain the classes, or
objects of the classes.

A program that creates a class for each template, row or plug-in keeps the classes in a Hash or an
Array. Memory that methods or variables of these classes retain is attributed to groups of methods
and variables. The collection completes the name of the group, because the developers have to limit
its size.

Sources: those of values.py. An object that was extended with a module has a singleton class. The
superclass of this class is a T_ICLASS, whose class is the module. A hidden variable of a refinement
refers to the module in which `refine` was called (eval.c, rb_mod_refine)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from findleaks.allocators.bulk import read_scattered
from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Engine
from findleaks.runtimes.base import Variable
from findleaks.runtimes.ruby.census import MASK, T_CLASS, T_ICLASS, T_MODULE
from findleaks.runtimes.ruby.class_holders import read_elements
from findleaks.runtimes.ruby.members import Members, is_object
from findleaks.runtimes.ruby.values import TEMPORARY, Values
from findleaks.target.interruptible import interruptible

LEAST = 64  # classes that a collection must contain, or whose objects it must contain
_COLLECTIONS = 64  # maximum number of collections that are examined, the longest ones
_SAMPLE = 1 << 10  # elements of a collection that are examined first, at equal distances
_MOST = 1 << 20  # elements that are examined if the sample has such a class, or its objects
_SOME = 1 << 15  # elements that are read together
_WORDS = 5  # words that are read of each element, with members in the slot of an Array or Struct
_INCLUDED = 4  # modules that are examined of each extended object
_OF_MANY = ("elements", "entries")  # units of the lengths of collections


def is_unnamed(values: Values, klass: int) -> bool:
    """Return whether a class or module has no name. A singleton class has the name of its
    superclass."""
    return values.class_name(klass).startswith(TEMPORARY)


class UnnamedClasses:
    """Finds the collections."""

    def __init__(self, memory: Memory, engine: Engine, values: Values, members: Members) -> None:
        self._memory, self._engine, self._values, self._members = memory, engine, values, members

    def find_collections(self, classes: Collection[int], variables: Iterable[Variable]) -> Mapping[int, str]:
        """Return for each of `classes` the words that complete the name of a group of its methods
        or variables: "classes in Template::CACHE" or "objects in Plugin::ALL". Classes that are in
        no collection of LEAST classes are missing. `variables` refer to the collections."""
        found: dict[int, str] = {}
        if len(classes) < LEAST:
            return found
        known = {klass: klass for klass in classes}
        known.update((module, klass) for klass in classes for module in self._refining(klass))
        collections = [one for one in variables if (one.length or 0) >= LEAST and one.unit in _OF_MANY]
        collections.sort(key=lambda one: (-(one.length or 0), one.name))
        for one in interruptible(self._memory.target, collections[:_COLLECTIONS]):
            elements = read_elements(self._memory, self._values, one.value)
            step = 1 + len(elements) // _SAMPLE
            if step > 1 and not any(True for _ in self._find_classes(elements[::step], known)):
                continue
            pairs: dict[int, str] = {}
            for first in interruptible(self._memory.target, range(0, min(len(elements), _MOST), _SOME)):
                pairs.update(self._find_classes(elements[first : first + _SOME], known))
            if len(pairs) >= LEAST:
                for klass, noun in pairs.items():
                    found.setdefault(klass, f"{noun} in {one.name}")
        return found

    def _refining(self, klass: int) -> Iterator[int]:
        """Yield the modules to which variables of the module `klass` refer, if it may be a
        refinement."""
        if (self._memory.word(klass) or 0) & MASK == T_MODULE:
            for one in self._members.own(klass):
                if is_object(one.value) and (self._memory.word(one.value) or 0) & MASK == T_MODULE:
                    yield one.value

    def _find_classes(self, elements: Sequence[int], known: Mapping[int, int]) -> Iterator[tuple[int, str]]:
        """Yield the classes of `known` that these elements keep alive, each with a noun: "classes"
        if the class is an element or a member of one, "objects" if an element is its object."""
        further: set[int] = set()
        for element, words in self._read(elements):
            tag = words[0] & MASK
            if tag in (T_CLASS, T_MODULE):
                # A method that was defined for a class belongs to the singleton class.
                yield from ((known[one], _noun(tag)) for one in (element, words[1]) if one in known)
                continue
            if words[1] in known:
                yield known[words[1]], "objects"
            else:
                further.add(words[1])
            yield from ((known[one], "classes") for one in words[2:] if one in known)
        yield from self._find_modules(further, known)

    def _find_modules(self, classes: Iterable[int], known: Mapping[int, int]) -> Iterator[tuple[int, str]]:
        """Yield the modules of `known` with which objects of these singleton classes were
        extended."""
        above = [words[2] for _, words in self._read(classes) if words[0] & MASK == T_CLASS and words[0] & self._values.singleton]
        for _ in range(_INCLUDED):
            yield from ((known[one], "objects") for one in above if one in known)
            included = [words for _, words in self._read(above) if words[0] & MASK == T_ICLASS]
            yield from ((known[words[1]], "objects") for words in included if words[1] in known)
            above = [words[2] for words in included]

    def _read(self, addresses: Iterable[int]) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield each address with the first words there. Addresses that cannot be read are left
        out."""
        wanted = [one for one in addresses if is_object(one)]
        data, missing = read_scattered(self._memory.target, self._engine, wanted, 8 * _WORDS) if wanted else (b"", ())
        records = zip(*[iter(self._memory.arch.words(data))] * _WORDS)
        for at, (address, words) in enumerate(interruptible(self._memory.target, zip(wanted, records), 1 << 12)):
            if at not in missing:
                yield address, words


def _noun(tag: int) -> str:
    return "modules" if tag == T_MODULE else "classes"
