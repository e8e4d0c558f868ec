"""Infer what may have allocated leaked blocks, of which nothing else is known: the program's calls,
its classes, the libraries that it loaded, or functions of a runtime."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from findleaks.audit.leak_groups import Leak
from findleaks.formatting import join_words, number, printable, shorten, some
from findleaks.session import Session

_MOST_CLASSES = 4  # that a sentence names
_DISTINCT = 256  # bytes: smaller structures of different classes often have the same size
# Calls that return memory for C.free
_FREED = re.compile(r"C\.(?:CString|CBytes|[mc]alloc|realloc|strn?dup) ")
_SHARED = re.compile(r"counters of std::shared_ptr<([\w:]+)")  # in the contents of such a pointer


def describe_sources(session: Session, leak: Leak, facts: dict[str, object]) -> str:
    """Return a sentence about what may have allocated the blocks of a group, with a space before
    it; "" if unknown. Adds this to `facts`."""
    classes = _describe_classes(session, leak, facts)
    if classes or "module" in facts:
        return classes
    if leak.type:
        return describe_calls(session, leak, facts)
    return describe_calls(session, leak, facts) or _describe_libraries(session, facts)


def list_source_remedies(facts: Mapping[str, object]) -> tuple[str, ...]:
    """Return remedies for what `describe_sources` added to the facts."""
    classes = facts.get("native_classes")
    if isinstance(classes, dict):
        names = classes["names"]
        of = f"each {shorten(names[0])}" if len(names) == 1 else "each object of these classes"
        return (f"if such objects owned the blocks: close() of {of}, as in try-with-resources",)
    calls = facts.get("allocating_calls")
    if not isinstance(calls, dict):
        return ()
    # If calls of a C library are among them, the first is one of these; see list_allocating_calls.
    if (calls["type"] or calls["has_parts"]) and not _FREED.match(calls["calls"][0]):
        return ("call the function of the library that deletes such an object, for example in a method Close",)
    return ("free each of these blocks with C.free, for example with defer",)


def _describe_classes(session: Session, leak: Leak, facts: dict[str, object]) -> str:
    libraries = [name for runtime in session.runtimes for name in runtime.allocation_sources()[0]]
    module = facts.get("module")
    about = " ".join([leak.type, leak.contents, str(module or ""), *libraries])
    size = leak.smallest if leak.smallest == leak.largest else 0
    shared = _SHARED.search(leak.contents)
    native = leak.type or (shared[1] if shared else "")
    found = [one for runtime in session.runtimes for one in runtime.native_classes(native, about, size)]
    if not found:
        return ""
    text = f" {_name_libraries(libraries)}" if libraries and not leak.type and module is None else ""
    if libraries:
        facts["loaded_libraries"] = {"names": libraries, "inferred": True}
    return text + _describe_owners(found, size, facts)


def describe_collected_owners(session: Session, type_name: str, size: int, facts: dict[str, object]) -> str:
    """Return a sentence about classes whose collected objects may have owned reachable native
    structures of a type, with a space before it; "" if unknown. The names of these classes are like
    the name of the type. Adds them to `facts`."""
    found = [one for runtime in session.runtimes for one in runtime.native_classes(type_name, type_name, size, True)]
    found = [one for one in found if not one[1]]
    return _describe_owners(found, size, facts) if found else ""


def _describe_owners(found: Sequence[tuple[str, int, int]], size: int, facts: dict[str, object]) -> str:
    """Return a sentence about the result of Runtime.native_classes. Adds the classes to `facts`."""
    # Live objects that own blocks of this size are evidence. If there are none, the owner is more
    # likely a class without live objects, because live objects of the other classes own blocks of
    # other sizes.
    owners, unused = [one for one in found if one[2]], [one for one in found if not one[1]]
    if owners and size >= _DISTINCT:
        unused = []
    classes = owners + unused or found
    facts["native_classes"] = {"names": [name for name, _, _ in classes], "inferred": True}
    names = [f"{shorten(name)}{_describe_live(count, owned)}" for name, count, owned in classes]
    live = "" if classes[0][1] else ", and no object is live" if len(names) == 1 else ", and of which no object is live"
    what = f"Objects of {names[0]} own native memory until close() is called{live}."
    if len(names) > 1:
        what = f"Classes whose objects own native memory until close() is called{live}: {some(names, _MOST_CLASSES)}."
    objects = "such objects" if len(names) == 1 else "objects of one of them"
    return f" {what} Inferred: {objects} may have been collected without a call of close()."


def _describe_live(count: int, owned: int) -> str:
    """Return the number of live objects of a class in parentheses. `owned`: the number of those
    that own a block of the size of the leaked ones."""
    if not count:
        return ""
    own = "" if not owned else f", {'which owns' if count == 1 else f'{number(owned)} of them own'} a block of this size"
    return f" ({number(count)} live{own})"


def describe_calls(session: Session, leak: Leak, facts: dict[str, object]) -> str:
    """Return a sentence about the places in the program that may have allocated the leaked blocks;
    "" if no place is known. The sentence begins with a space. Adds the places to `facts`."""
    is_text, has_parts = leak.hint.startswith('"'), bool(leak.indirect_blocks)
    calls = [(one.name, call) for one in session.runtimes for call in one.allocating_calls(is_text, leak.type, has_parts)]
    if not calls:
        return ""
    facts["allocating_calls"] = {"calls": [call for _, call in calls], "type": leak.type or None, "has_parts": has_parts, "inferred": True}
    what = "such blocks of text" if is_text else "such objects" if leak.type or has_parts else "memory of C"
    places = join_words([call for _, call in calls])
    them = "one of them" if is_text else "one of them, or another function of C,"
    inferred = f"Inferred: the program does not free all memory that {them} returned."
    verb = "may allocate" if what == "such objects" else "allocates"
    return f" {calls[0][0]}'s code {verb} {what} in these calls: {places}. {inferred}"


def _describe_libraries(session: Session, facts: dict[str, object]) -> str:
    """Return a sentence about the libraries, or else the functions of a runtime, that may have
    allocated the leaked blocks; "" if unknown. Adds them to `facts`."""
    sources = [runtime.allocation_sources() for runtime in session.runtimes]
    libraries = [name for names, _ in sources for name in names]
    functions = [name for _, names in sources for name in names]
    if libraries:
        facts["loaded_libraries"] = {"names": libraries, "inferred": True}
        return f" {_describe_loaded_libraries(libraries)}"
    if not functions:
        return ""
    facts["allocating_functions"] = {"names": functions, "inferred": True}
    text = " The process has loaded only libraries of the runtime and of the system. Inferred from this:"
    return f"{text} the program may have called {' or '.join(functions)} and not freed this memory."


def _name_libraries(libraries: Sequence[str]) -> str:
    only, names = "only " if len(libraries) == 1 else "", some(list(map(printable, libraries)), 3)
    return f"Except for libraries of the runtime and of the system, the process has loaded {only}{names}."


def _describe_loaded_libraries(libraries: Sequence[str]) -> str:
    """Return a sentence about the libraries that a program of a runtime loaded."""
    which = "this library" if len(libraries) == 1 else "one of them"
    return f"{_name_libraries(libraries)} Inferred from this: {which} may have allocated the leaked blocks."
