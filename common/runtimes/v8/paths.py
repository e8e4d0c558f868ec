"""Describe paths to JavaScript objects with the names that the author of a program knows:
variables, properties, modules, functions."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import Optional

from findleaks.engine.dominators import root_node
from findleaks.formatting import join_words, number, some
from findleaks.graph.joint_roots import LEAST
from findleaks.runtimes.joint_members import JointMembers, JointRetainer, find_joint_members
from findleaks.runtimes.object_graph import MOST_LEVELS, MOST_NAMED, ObjectGraph, join_path
from findleaks.runtimes.v8.functions import Functions, JavaScriptFunction
from findleaks.runtimes.v8.names import CALL, CLOSURE, CONTEXT, SLICE, STRING
from findleaks.value_classes import NamedTuple

_MOST_REFERRERS, _MOST_INNER = 1 << 17, 64  # objects and contexts that may name a script
_MOST_MEMBERS = 1 << 22  # retained objects whose types are counted
_MOST_FUNCTIONS = 1 << 12  # retained objects of a type whose functions are counted
_MANY_SLICES = 1000  # fewest strings that are parts of others to be reported
_RUN = 64  # of these objects that are neighbours
_RANKED = 8  # most frequent functions of which one is named
_AMOUNTS = (("", 1), (", most of them", 0.5), (", many of them", 0.1), (", for example", 0))
"""What precedes the function that this part of the objects has."""
_WITH_FUNCTION = {CLOSURE: "closures", CALL: "Generator"}
"""Types of objects that have a function, with the noun for several."""
_MOST_TYPES = 3
_MOST_LARGE, _MOST_EXAMINED = 16, 256  # large objects below one object, and in total
_MOST_VISITS = 8  # visits of each object, on average: nested contexts retain the same objects
_VARIABLE = "variable "
# Beginnings of titles that say little about a program: those of objects with many purposes, of
# texts, and of V8's own objects.
_GENERAL = re.compile(r'(Object|Array|Map|Set)\b|system / Context|closure |["(]')
_SCRIPT = "(/"  # precedes the path of a script; the names of Node's own scripts are not paths
_MODULE, _PROCESS = "Module", "process"  # types: modules of CommonJS, Node's object `process`


class _Step(NamedTuple):
    """An object of a path, with the member that refers to the next one. `is_named`: whether the
    program gives it a name."""

    text: str
    is_named: bool = False


class NamedObjects(ObjectGraph):
    """The graph of V8's objects with what names them; the subclass is V8Graph."""

    functions: Functions

    def title_of(self, index: int) -> str:
        """Return the type of an object; for a closure also its function."""
        raise NotImplementedError

    def function_of(self, index: int) -> JavaScriptFunction:
        """Return the function of a closure, or of a call of an async function; for a bound
        function, the function that it calls."""
        raise NotImplementedError

    def length_of(self, index: int) -> str:
        """Return "50,000 elements" for an array, "50,000 entries" for a map or set, "50,000
        properties" for an object with a dictionary of many properties; else ""."""
        raise NotImplementedError

    def text_of_property(self, index: int, name: str) -> str:
        """Return the string that an own property of an object has; "" if it has none."""
        raise NotImplementedError

    def name_stored(self, owner: int, storage: int, offset: int) -> str:
        """Return the name of the property or element of `owner` that is at an offset of its
        storage; "" if it has none."""
        raise NotImplementedError

    def is_receiver(self, index: int) -> bool:
        """Whether an object is one that scripts can have properties of."""
        raise NotImplementedError

    def is_storage(self, index: int) -> bool:
        """Whether an object stores parts of another one: properties, elements, or the entries of a
        map."""
        raise NotImplementedError

    def is_native_context(self, index: int) -> bool:
        """Whether an object is the context of all global variables."""
        raise NotImplementedError

    def is_native_context_map(self, number: int) -> bool:
        """Whether the objects of the map with this number are such contexts."""
        raise NotImplementedError

    def is_global_object(self, index: int) -> bool:
        """Whether the properties of an object are the global variables."""
        raise NotImplementedError


def describe_path(graph: NamedObjects, index: int) -> str:
    """Return a path from a root: "variable cache (app.js) → Map → Session.data → Array"."""
    path = list(graph.path(index))
    if not path:
        return ""
    if len(path) > 2 * MOST_LEVELS:
        path = [*path[:MOST_LEVELS], *path[-MOST_LEVELS:]]
    steps = list(_steps(graph, path))
    # Leave out the part of a long path before the first name that is from a script of the program.
    first = next((at for at, step in enumerate(steps) if step.is_named and _SCRIPT in step.text), 0)
    skipped = ["…"] if first and len(steps) >= MOST_NAMED else []
    names = [text for text, _ in groupby(step.text for step in steps[first if skipped else 0 :])]
    length = graph.length_of(index)
    return join_path([*skipped, *names, graph.title_of(index) + (f" of {length}" if length else "")])


def describe_holder(graph: NamedObjects, index: int) -> str:
    """Return the last object with a name on a path to an object: "variable emitter
    (/app/server.js)"; "" if there is none."""
    path = list(graph.path(index))[-MOST_LEVELS:]
    if graph.is_global_object(index):
        return "the global object"
    steps = list(_steps(graph, path)) if path else []
    named = [step.text for step in steps if step.is_named]
    if named or not steps:
        return named[-1] if named else ""
    # The last property of an object whose constructor is not a general one: "Agent.requests".
    members = [step.text for step in steps if "." in step.text and not _GENERAL.match(step.text)]
    return f"{members[-1]} ({graph.describe_root(index)})" if members else ""


def _steps(graph: NamedObjects, path: list[int]) -> Iterator[_Step]:
    """Yield each object but the last one. Storage of an object is not a step."""
    owner = path[0]
    for at, (one, following) in enumerate(zip(path, path[1:])):
        owner = owner if graph.is_storage(one) else one
        if graph.is_receiver(owner) and graph.is_storage(following) and at + 2 < len(path):
            continue
        link = graph.link(one, following)
        member = link.name if link.name.startswith((".", "[")) else ""
        if owner != one:
            member = graph.name_stored(owner, one, link.address - graph.blocks.address(one)) if link.address else ""
        yield _step(graph, owner, link.name, member)


def _step(graph: NamedObjects, owner: int, link: str, member: str) -> _Step:
    kind = graph.type_of(owner)
    if kind == CONTEXT and link.startswith(_VARIABLE):
        return _Step(f"{link}{_script_of(graph, owner)}", True)
    if member and graph.is_global_object(owner):
        return _Step(f"global variable {member.lstrip('.')}", True)
    if kind == _MODULE:
        name = graph.text_of_property(owner, "filename")
        shown = f"exports of module {name}" if member == ".exports" else f"module {name}{member}"
        return _Step(shown if name else f"{kind}{member}", bool(name))
    if kind == _PROCESS and member.startswith("."):
        return _Step(f"{kind}{member}", True)
    return _Step("global scope" if graph.is_native_context(owner) else f"{graph.title_of(owner)}{member}")


def find_joint_variables(graph: NamedObjects) -> Optional[JointRetainer]:
    """Return the variables of one context that retain most memory only together, such as a Map and
    an Array of the same objects. Return None if no such variables retain at least the fraction
    LEAST of the live objects."""
    tree, plain = graph.dominators, graph.graph
    if tree is None or plain is None:
        return None
    least = max(int(LEAST * tree.total().bytes), 1)
    found: list[JointMembers] = []
    left = _MOST_VISITS * tree.total().blocks
    waiting = [one.block for one in tree.children(root_node(0), _MOST_LARGE) if one.bytes >= least]
    for index in islice(waiting, _MOST_EXAMINED):  # this list grows
        if graph.type_of(index) == CONTEXT and not graph.is_native_context(index):
            fields = (one for one in graph.fields_of(index, 0) or () if one.is_reference and one.name.startswith(_VARIABLE))
            values = {graph.blocks.find(one.value): one.name for one in fields}
            members = [(name, value) for value, name in values.items() if value >= 0]
            left -= tree.sum_retained(index).blocks if len(members) > 1 else 0
            if left < 0:
                break
            found += find_joint_members(plain, tree, index, members, graph.target)
        waiting += [one.block for one in tree.children(index, _MOST_LARGE) if one.bytes >= least]
    best = max(found, key=lambda one: one.retained.bytes, default=None)
    if best is None:
        return None
    names = join_words([name.removeprefix(_VARIABLE) for name in best.names])
    return JointRetainer(f"{_VARIABLE.strip()}s {names}{_script_of(graph, best.holder)}", best.holder, best.retained)


def _script_of(graph: NamedObjects, context: int, is_inner: bool = False) -> str:
    """Return the script of a function that uses a context, or a context inside it:
    " (/app/server.js)"; "" if it is not found."""
    users = graph.referrers(context)[:_MOST_REFERRERS]
    for one in users:
        script = graph.functions.of(graph.blocks.address(one)).script if graph.type_of(one) == CLOSURE else ""
        if script:
            return f" ({script})"
    inner = (one for one in users[:_MOST_INNER] if graph.type_of(one) == CONTEXT and not is_inner)
    return next(filter(None, (_script_of(graph, one, True) for one in inner)), "")


def describe_content(graph: NamedObjects, index: int) -> str:
    """Return a sentence on the types of the objects that a node of the dominator tree retains: "It
    retains 50,000 Session, 50,000 closures onData (app.js:9)."."""
    tree = graph.dominators
    if tree is None:
        return ""
    members = tree.members(index, int(index >= 0), _MOST_MEMBERS)
    numbers, names = graph.labels()
    counts, contexts = Counter[str](), 0
    for label, count in Counter(map(numbers.__getitem__, members)).items():
        counts[names[label]] += count
        contexts += count if graph.is_native_context_map(label) else 0
    # Each context has hundreds of objects that V8 created. In a list of their types, the user would
    # overlook the context.
    shown = [f"{number(contexts)} contexts of scripts (vm.createContext, ShadowRealm)"] if contexts > 1 else []
    for name, count in counts.most_common():
        if name in _WITH_FUNCTION:
            shown.append(_describe_functions(graph, name, count, [one for one in members if names[numbers[one]] == name]))
        elif not name.startswith("(") and name != CONTEXT:
            shown.append(f"{number(count)} {name}")
    least = "at least " if len(members) == _MOST_MEMBERS else ""
    slices = counts[SLICE]
    if slices >= _MANY_SLICES and 2 * slices > counts[STRING]:
        shown.insert(0, f"{number(slices)} parts of strings, which keep the whole strings in memory")
    return f"It retains {least}{some(shown, _MOST_TYPES)}." if shown else ""


def _describe_functions(graph: NamedObjects, name: str, count: int, objects: Sequence[int]) -> str:
    """Return the number of closures, or of calls of async functions, with the function of most of
    them: "50,000 closures onData (app.js:9)". A function of the program is preferred to one of
    Node's own scripts, because the same functions of Node occur with many causes."""
    # Runs of objects, because the functions of neighbours may alternate.
    step = -(-len(objects) // _MOST_FUNCTIONS) * _RUN
    sample = [one for first in range(0, len(objects), step) for one in objects[first : first + _RUN]]
    functions = Counter(graph.function_of(one) for one in sample)
    ranked = [pair for pair in functions.most_common(_RANKED) if pair[0].script]
    own = (pair for pair in ranked if _SCRIPT in f"({pair[0].script}" and 2 * pair[1] >= ranked[0][1])
    function, most = next(own, ranked[0] if ranked else (None, 0))
    noun = _WITH_FUNCTION[name] if count > 1 else _WITH_FUNCTION[name].removesuffix("s")
    if function is None:
        return f"{number(count)} {noun}"
    of = "" if name == CLOSURE else " of"
    amount = next(word for word, least in _AMOUNTS if most >= least * len(sample))
    return f"{number(count)} {noun}{amount}{of} {function.label()}"
