"""Name metatables, and thereby the types of the tables and userdata that have them.

Lua has no classes. A program uses a table as the metatable of all objects of a class. The name of
the class is, in this order:

- the field `__name` of the metatable, or a similar field of a library for classes;
- the global variable, the module, or the field of a module that refers to it;
- the name with which a C library registered it (luaL_newmetatable);
- the local variable that refers to it: `local Session = {}`. Functions use such a variable as an
  upvalue. The functions that are searched are those in the metatable, in its `__index`, in global
  variables and in modules, and those that run;
- a field of such a table (`M.Session`). Private fields belong to the class itself.

A variable whose name begins with a small letter, such as `mt`, may be that of several classes. Then
the name has the first method of the class, too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Protocol

from findleaks.runtimes.lua.layout import FUNCTION, STRING, TABLE, State
from findleaks.value_classes import NamedTuple

# A program may give each object a metatable and functions of its own.
_MOST_FUNCTIONS = 1 << 14  # whose local variables are read
_MOST_METHODS = 1 << 12  # elements of a table with methods that are read
_NAME_FIELDS = ("__name", "__cname", "__classname", "__className", "_NAME", "_name", "className", "classname")
"""Fields of a metatable in which libraries keep the name of a class."""


def is_class_name(name: str) -> bool:
    """Whether a variable with this name is most likely a class."""
    return name[:1].isupper() and len(name) > 1 and " " not in name


class _Method(NamedTuple):
    """A method with its file and line. `variables`: the names of its upvalues."""

    file: str
    line: int
    name: str
    variables: frozenset[str]


class _Searched(NamedTuple):
    """The names of tables that functions use as upvalues, by table, and the methods."""

    tables: dict[int, str]
    methods: list[_Method]


class ObjectReader(Protocol):
    """The part of objects.Objects that names need."""

    def entries(self, state: State, table: int) -> Iterator[tuple[object, int, int, int]]: ...
    def text(self, state: State, string: int) -> str: ...
    def modules(self, state: State) -> Iterator[tuple[str, int]]: ...
    def registry(self, state: State) -> Iterator[tuple[str, int, int]]: ...
    def globals(self, state: State) -> Iterator[tuple[str, int, int]]: ...
    def local_variables(self, state: State, thread: int) -> Iterator[tuple[int, str, int]]: ...
    def upvalues(self, state: State, function: int) -> Iterator[tuple[str, int]]: ...
    def reference(self, place: int) -> int: ...
    def is_script(self, state: State, function: int) -> bool: ...
    def prototype(self, state: State, function: int) -> int: ...
    def place(self, state: State, proto: int) -> str: ...
    def file_of(self, state: State, function: int) -> str: ...


class ClassNames:
    """Names the metatables of all states. `objects` is used only when a name is requested."""

    def __init__(self, objects: ObjectReader) -> None:
        self._objects = objects
        self._names: dict[int, str] = {}  # by metatable
        self._public: dict[int, dict[int, str]] = {}  # tables with a public name, by state
        self._functions: dict[int, dict[int, None]] = {}  # functions of modules, by state
        # What was found in the functions of an `__index`. Many metatables may share it.
        self._methods: dict[int, _Searched] = {}
        self._left = _MOST_FUNCTIONS
        self._locals: dict[int, dict[int, str]] = {}  # tables of local variables, by state
        self._inner: dict[int, dict[int, str]] = {}  # tables in fields of other tables, by state

    def find(self, state: State, metatable: int) -> str:
        """Return the name of the class with this metatable, or ""."""
        if metatable not in self._names:
            self._names[metatable] = self._find(state, metatable)
        return self._names[metatable]

    def _find(self, state: State, metatable: int) -> str:
        functions, tables = dict[int, str](), list[int]()
        stated = ""
        for key, kind, value, _ in islice(self._objects.entries(state, metatable), _MOST_METHODS):
            if key in _NAME_FIELDS and kind == STRING:
                stated = stated if stated and key != "__name" else self._objects.text(state, value)
                if key == "__name":
                    return stated
            tables += [value] if kind == TABLE and key == "__index" and value != metatable else []
            if kind == FUNCTION:
                functions[value] = key if isinstance(key, str) else ""
        self._read_public(state)
        found = self._public[state.address].get(metatable, "") or stated
        if found:
            return found
        searched = [self._search(state, functions), *(self._read_methods(state, table) for table in tables)]
        names = [one.tables.get(metatable, "") for one in searched]
        names.append(self._read_locals(state).get(metatable, ""))
        names.append("" if any(map(is_class_name, names)) else self._read_inner(state).get(metatable, ""))
        found = next(filter(is_class_name, names), "") or next(filter(None, names), "")
        return found if is_class_name(found) else _add_method(found, [method for one in searched for method in one.methods])

    def _read_inner(self, state: State) -> dict[int, str]:
        """Return the names of the tables to which private fields of public tables and of local
        variables refer. Example: the metatable of middleclass is `Session.__instanceDict`."""
        if state.address not in self._inner:
            found = self._inner[state.address] = {}
            outer = {**self._locals[state.address], **self._public[state.address]}
            for table, name in islice(outer.items(), _MOST_METHODS):
                for key, kind, value, _ in islice(self._objects.entries(state, table), _MOST_METHODS):
                    if kind == TABLE and isinstance(key, str) and value != table and value not in outer:
                        if key.startswith("__") and key not in ("__index", "__newindex"):
                            found[value] = name
                        elif is_class_name(key):
                            found.setdefault(value, f"{name.partition(' in ')[0]}.{key}")
        return self._inner[state.address]

    def _read_methods(self, state: State, table: int) -> _Searched:
        """Search the functions in a table."""
        if table not in self._methods:
            entries = islice(self._objects.entries(state, table), _MOST_METHODS)
            functions = {value: key if isinstance(key, str) else "" for key, kind, value, _ in entries if kind == FUNCTION}
            self._methods[table] = self._search(state, functions)
        return self._methods[table]

    def _search(self, state: State, functions: Mapping[int, str]) -> _Searched:
        """Return the names of the tables that functions use as upvalues, and the methods among the
        functions. `functions`: their keys in a table ("": no name), by address."""
        found = _Searched({}, [])
        for function, key in functions.items():
            if not self._left or not self._objects.is_script(state, function):
                continue
            self._left -= 1
            variables = set[str]()
            for name, place in self._objects.upvalues(state, function):
                if name not in ("_ENV", ""):
                    found.tables.setdefault(self._objects.reference(place), self._qualify(state, name, function))
                    variables.add(name)
            file, _, line = self._objects.place(state, self._objects.prototype(state, function)).rpartition(":")
            if key and line.isdigit():
                found.methods.append(_Method(file, int(line), key, frozenset(variables)))
        return found

    def _read_public(self, state: State) -> None:
        """Read the names of the tables to which global variables, modules and fields of modules
        refer, and of the metatables that C libraries registered."""
        if state.address not in self._public:
            names = self._public[state.address] = {value: name for name, value in self._objects.modules(state)}
            functions = self._functions[state.address] = {}
            for name, value, _ in self._objects.globals(state):
                names.setdefault(value, name)
                functions[value] = None
            # Lua's own tables in the registry have names that begin with "_".
            registry = next((value for _, value, _ in self._objects.registry(state)), 0)
            # References of luaL_ref, which have numbers, may be many.
            named = ((key, kind, value) for key, kind, value, _ in self._objects.entries(state, registry) if isinstance(key, str))
            for key, kind, value in islice(named, _MOST_METHODS):
                if kind == TABLE and key[:1] not in ("", "_"):
                    names.setdefault(value, key)

    def _read_locals(self, state: State) -> dict[int, str]:
        """Return the names of the tables to which local variables refer."""
        if state.address not in self._locals:
            found = self._locals[state.address] = {}
            found.update(self._search(state, dict.fromkeys(self._functions[state.address], "")).tables)
            for function, name, place in self._objects.local_variables(state, state.thread):
                found.setdefault(self._objects.reference(place), self._qualify(state, name, function))
        return self._locals[state.address]

    def _qualify(self, state: State, name: str, function: int) -> str:
        """Return the name of a local variable. Names of classes begin with a capital letter; to
        others, such as `mt`, the name of the file is added."""
        if is_class_name(name):
            return name
        file = self._objects.file_of(state, function)
        return f"{name} in {file}" if file else name


def _add_method(name: str, methods: Sequence[_Method]) -> str:
    """Add the first method of a class to a name that other classes may have, too.

    Example: a function `class` returns `local c = {}`. All classes have the name "c". A constructor
    that all classes share refers to this variable, and is not used."""
    variable = name.partition(" in ")[0]
    found = min((one[:3] for one in methods if variable not in one.variables), default=None)
    return f"{variable or 'object'} with {found[2]} at {found[0]}:{found[1]}" if found is not None else name
