"""Name metatables, and thereby the types of the tables and userdata that have them.

Lua has no classes. A program uses a table as the metatable of all objects of a class. The name of
the class is, in this order:

- the field `__name` of the metatable;
- the global variable, the module, or the field of a module that refers to it;
- the local variable that refers to it: `local Session = {}`. Functions use such a variable as an
  upvalue. The functions that are searched are those in the metatable, in its `__index`, in global
  variables and in modules, and those that run."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Protocol

from findleaks.runtimes.lua.layout import FUNCTION, STRING, TABLE, State

# A program may give each object a metatable and functions of its own.
_MOST_FUNCTIONS = 1 << 14  # whose local variables are read
_MOST_METHODS = 1 << 12  # elements of a table with methods that are read


class ObjectReader(Protocol):
    """The part of objects.Objects that names need."""

    def entries(self, state: State, table: int) -> Iterator[tuple[object, int, int, int]]: ...
    def text(self, state: State, string: int) -> str: ...
    def modules(self, state: State) -> Iterator[tuple[str, int]]: ...
    def globals(self, state: State) -> Iterator[tuple[str, int, int]]: ...
    def local_variables(self, state: State, thread: int) -> Iterator[tuple[int, str, int]]: ...
    def upvalues(self, state: State, function: int) -> Iterator[tuple[str, int]]: ...
    def reference(self, place: int) -> int: ...
    def is_script(self, state: State, function: int) -> bool: ...
    def file_of(self, state: State, function: int) -> str: ...


class ClassNames:
    """Names the metatables of all states. `objects` is used only when a name is requested."""

    def __init__(self, objects: ObjectReader) -> None:
        self._objects = objects
        self._names: dict[int, str] = {}  # by metatable
        self._public: dict[int, dict[int, str]] = {}  # tables with a public name, by state
        self._functions: dict[int, dict[int, None]] = {}  # functions of modules, by state
        # The names that the methods of an `__index` use for tables. Many metatables may share it.
        self._methods: dict[int, dict[int, str]] = {}
        self._left = _MOST_FUNCTIONS
        self._locals: dict[int, dict[int, str]] = {}  # tables of local variables, by state

    def find(self, state: State, metatable: int) -> str:
        """Return the name of the class with this metatable, or ""."""
        if metatable not in self._names:
            self._names[metatable] = self._find(state, metatable)
        return self._names[metatable]

    def _find(self, state: State, metatable: int) -> str:
        functions, tables = list[int](), list[int]()
        for key, kind, value, _ in self._objects.entries(state, metatable):
            if key == "__name" and kind == STRING:
                return self._objects.text(state, value)
            tables += [value] if kind == TABLE and key == "__index" and value != metatable else []
            functions += [value] if kind == FUNCTION else []
        self._read_public(state)
        public = self._public[state.address].get(metatable, "")
        if public:
            return public
        found = next((name for name, value in self._upvalues(state, functions) if value == metatable), "")
        for table in tables:
            found = found or self._read_methods(state, table).get(metatable, "")
        return found or self._read_locals(state).get(metatable, "")

    def _read_methods(self, state: State, table: int) -> dict[int, str]:
        """Return the names of the tables that the functions in a table use as upvalues."""
        if table not in self._methods:
            entries = islice(self._objects.entries(state, table), _MOST_METHODS)
            functions = [value for _, kind, value, _ in entries if kind == FUNCTION]
            found = self._methods[table] = dict[int, str]()
            for name, value in self._upvalues(state, functions):
                found.setdefault(value, name)
        return self._methods[table]

    def _read_public(self, state: State) -> None:
        """Read the names of the tables that global variables, modules and fields of modules refer
        to."""
        if state.address not in self._public:
            names = self._public[state.address] = {value: name for name, value in self._objects.modules(state)}
            functions = self._functions[state.address] = {}
            for name, value, _ in self._objects.globals(state):
                names.setdefault(value, name)
                functions[value] = None

    def _read_locals(self, state: State) -> dict[int, str]:
        """Return the names of the tables to which local variables refer."""
        if state.address not in self._locals:
            found = self._locals[state.address] = {}
            for name, value in self._upvalues(state, self._functions[state.address]):
                found.setdefault(value, name)
            for function, name, place in self._objects.local_variables(state, state.thread):
                found.setdefault(self._objects.reference(place), self._qualify(state, name, function))
        return self._locals[state.address]

    def _upvalues(self, state: State, functions: list[int] | dict[int, None]) -> Iterator[tuple[str, int]]:
        """Yield name and value of each upvalue of these functions, except those of C code."""
        for function in functions:
            if self._left and self._objects.is_script(state, function):
                self._left -= 1
                for name, place in self._objects.upvalues(state, function):
                    if name not in ("_ENV", ""):
                        yield self._qualify(state, name, function), self._objects.reference(place)

    def _qualify(self, state: State, name: str, function: int) -> str:
        """Return the name of a local variable. Names of classes begin with a capital letter; to
        others, such as `mt`, the name of the file is added."""
        if name[:1].isupper() and len(name) > 1:
            return name
        file = self._objects.file_of(state, function)
        return f"{name} in {file}" if file else name
