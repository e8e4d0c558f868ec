"""Divide Go's roots into groups that a programmer knows: variables, goroutines that do the same,
registers of threads, and the runtime's records of objects."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping

from findleaks.runtimes.base import UserThread
from findleaks.runtimes.go.objects import HeapObjects
from findleaks.runtimes.go.packages import find_own_frame
from findleaks.runtimes.go.variable_names import VariableNames
from findleaks.runtimes.root_groups import RootGroup

# Priorities. The order is that of `roots`, with these exceptions. Memory that both a timer and a
# variable of the program reach belongs to the variable. The timer of a goroutine that sleeps refers
# to the goroutine, so memory that both reach belongs to the goroutine. The runtime's own
# goroutines, and those without stack maps, may refer to processors. The runtime's own variables
# refer to processors with words that Go's collector does not treat as pointers.
_VARIABLE, _WAITING, _TIMER, _INTERNAL, _RECORD, _STACK, _REGISTER, _LIST = range(8)
RECORDS = "finalizers, cleanups and weak pointers"
QUEUE = "the queue of finalizers and cleanups that have not run yet"
_REGISTERS = "registers of threads"
PROCESSORS = "the runtime's processors (runtime.allp), with their timers and caches"
_LISTED = "the runtime's list of goroutines (runtime.allgs), ended ones included"
# Variables of the runtime that are recognised by the type of the object that they refer to.
_PROCESSORS = "[]*runtime.p"
_OWN = {_PROCESSORS: (PROCESSORS, _TIMER), "[]*runtime.g": (_LISTED, _LIST)}


def list_root_groups(
    objects: HeapObjects, names: VariableNames, structures: Mapping[int, int], deferred: Mapping[int, int]
) -> list[RootGroup]:
    """Return the groups, in no order. Words that refer to no object are left out. `structures`: the
    addresses of the g structures of goroutines, by number of the goroutine. `deferred`: the
    addresses of the first deferred call of those that run or are in a system call, by number."""
    goroutines = [*_goroutines(objects, structures), *_deferred_calls(objects, deferred)]
    return [*_variables(objects, names), *_records(objects), *goroutines, *_registers(objects)]


def _variables(objects: HeapObjects, names: VariableNames) -> Iterator[RootGroup]:
    """Yield a group for each variable. In a stripped program, each word is a variable. If no
    function is known to use a variable, the variable is one of the runtime if it refers to an
    object of a type of the runtime, for example runtime.p."""
    words = [pair for pairs in objects.variable_words() for pair in pairs]
    indices = objects.blocks.find_all([value for _, value in words])[0]
    named: dict[str, tuple[int, list[int]]] = {}
    own: dict[str, tuple[int, list[int]]] = {}
    for (address, value), index in zip(words, indices):
        if 0 <= index < len(objects.blocks):
            # Processors have all timers, and goroutines have what they wait for, so these get names
            # that say so.
            is_all = objects.processors is not None and address == objects.processors.variable
            title = _PROCESSORS if is_all else objects.title_at(index)
            of, name = (own, title) if title in _OWN else (named, _symbol(names, address) or hex(address))
            of.setdefault(name, (address, []))[1].append(value)
    for title, (address, values) in own.items():
        yield RootGroup(_OWN[title][0], "variable", values, address, 0, _OWN[title][1])
    names.find_users_of([address for name, (address, _) in named.items() if name == hex(address)])
    for name, (address, values) in named.items():
        has_symbol = name != hex(address)
        users = [name] if has_symbol else names.users_of(address) or [objects.title_at(objects.blocks.find(values[0]))]
        is_internal = all(one.startswith("runtime.") for one in users)
        title = f"variable {name}" if has_symbol else names.name(address)
        yield RootGroup(title, "variable", values, address, 0, _INTERNAL if is_internal else _VARIABLE)


def _symbol(names: VariableNames, address: int) -> str:
    return (names.symbol(address) or names.owner(address)).partition("+")[0]


def _records(objects: HeapObjects) -> Iterator[RootGroup]:
    values = objects.records.words + objects.finalized_words()
    if values:
        yield RootGroup(RECORDS, "records", values, 0, 0, _RECORD)
    values = array("Q", (value for _, value in objects.queued_pointers()))
    if values:
        yield RootGroup(QUEUE, "records", values, 0, 0, _RECORD)


def _goroutines(objects: HeapObjects, structures: Mapping[int, int]) -> Iterator[RootGroup]:
    for name, threads in group_goroutines(objects.stacks.threads()).items():
        values = array("Q", filter(None, (structures.get(one.number) for one in threads)))
        for words in objects.stacks.words(threads):
            values.extend(words)
        waits = all(one.state == "waiting" and not one.is_internal for one in threads)
        yield RootGroup(name, "threads", values, 0, len(threads), _WAITING if waits else _STACK)


def _deferred_calls(objects: HeapObjects, deferred: Mapping[int, int]) -> Iterator[RootGroup]:
    """Yield a group for the deferred calls of goroutines that run or are in a system call. The
    structures of threads refer to these goroutines, and processors refer to threads, but the
    deferred calls belong to neither."""
    for name, threads in group_goroutines(one for one in objects.stacks.threads() if one.number in deferred).items():
        values = array("Q", filter(None, (deferred[one.number] for one in threads)))
        if values:
            yield RootGroup(f"deferred calls of {name}", "threads", values, 0, 0, _WAITING)


def _registers(objects: HeapObjects) -> Iterator[RootGroup]:
    values = [word for thread in objects.stacks.threads_with_registers() for word in thread.words]
    if values:
        yield RootGroup(_REGISTERS, "registers", values, 0, 0, _REGISTER)


def group_goroutines(every: Iterable[UserThread]) -> dict[str, list[UserThread]]:
    """Return the groups of goroutines that are one root, by name."""
    groups: dict[str, list[UserThread]] = {}
    for one in every:
        groups.setdefault(describe_goroutines(one), []).append(one)
    return groups


def describe_goroutines(one: UserThread) -> str:
    """Return a phrase for goroutines like this one: "goroutines in main.wait (chan receive),
    created by main.start". Those of equal function, wait reason and creator have the same
    phrase."""
    frame = find_own_frame(one.frames)
    where = f" in {frame.short_name()}" if frame is not None else ""
    state = one.reason or one.state
    creator = f", created by {one.creator.short_name()}" if one.creator is not None else ""
    return f"goroutines{where}{f' ({state})' if state else ''}{creator}"
