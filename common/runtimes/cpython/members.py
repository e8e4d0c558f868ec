"""Name Python objects and the words in them: attributes, closures, default arguments, keys, local
variables.

Sources, CPython 3.9 to 3.14: Include/cpython/listobject.h, tupleobject.h, dictobject.h,
setobject.h, funcobject.h, cellobject.h, genobject.h, code.h; Include/internal/pycore_frame.h and
pycore_interpframe_structs.h (_PyInterpreterFrame), pycore_dict.h (_dictvalues);
Modules/_collectionsmodule.c (dequeobject), Include/cpython/classobject.h or Include/classobject.h
(PyMethodObject), Modules/_functoolsmodule.c (partialobject, lru_cache_object),
Include/internal/pycore_context.h (_pycontextvarobject), Include/cpython/weakrefobject.h. If the
offset of a member differs between versions, the member is found by the types of its neighbours."""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.engine.contract import Blocks
from findleaks.engine.terms import State
from findleaks.formatting import format_count
from findleaks.runtimes.cpython.borrowed import WEAK
from findleaks.runtimes.cpython.engine import NO_OBJECT
from findleaks.runtimes.cpython.structure_members import name_structure_member
from findleaks.runtimes.cpython.types import EXCEPTION, INLINE_VALUES, MANAGED_DICT, SUBCLASSES, Types
from findleaks.runtimes.cpython.variables import GENERAL, SPLIT, UNICODE, items, table
from findleaks.target.base import Target

_LIST = {16: "ob_size", 24: "ob_item", 32: "allocated"}
_DICT_KEYS = 32
_DICT = {16: "ma_used", _DICT_KEYS: "ma_keys", 40: "ma_values"}
_CODE, _DEFAULTS, _CLOSURE = "__code__", "__defaults__", "__closure__"
_FUNCTION = {16: "__globals__", 24: "__builtins__", 48: _CODE, 56: _DEFAULTS, 64: "__kwdefaults__", 72: _CLOSURE, 88: "__dict__"}
_OLD_FUNCTION = {16: _CODE, 24: "__globals__", 32: _DEFAULTS, 40: "__kwdefaults__", 48: _CLOSURE, 72: "__dict__"}
_TYPE = {24: "tp_name", 256: "__base__", 264: "__dict__"}
_LENGTHS = {"set": 24, "frozenset": 24, "collections.deque": 16}
"""Offsets of the length of collections that are not lists, tuples or dictionaries."""
_LRU_CACHE, _PARTIAL = "functools._lru_cache_wrapper", "functools.partial"
_CACHE, _CACHED = 72, 88
"""Offsets of the dictionary and of the function of an lru_cache."""
_SUSPENDED = ("generator", "coroutine", "async_generator")
_FRAME_CODE, _FRAME = 32, 24  # offsets in a frame object: f_code before 3.11, f_frame since then
_TRACEBACK_FRAME, _TRACEBACK_LINE = 24, 36  # offsets of tb_frame and tb_lineno
_MOST_NAMES = 1 << 12
_FIRST_FRAME = range(64, 120, 8)  # offsets at which a suspended object's frame may begin
_TASK_WORDS = 32  # words of a task in which its coroutine is looked for
_CODE_WORDS = range(3, 24)  # words of a code object in which its names are looked for


class Layout:
    """The offsets in a frame (_PyInterpreterFrame) of one version, in bytes."""

    def __init__(self, release: tuple[int, int]) -> None:
        self.function, self.code = (0, 32) if release == (3, 11) else (16, 0)
        self.variables = 72 if release < (3, 14) else 80
        self.has_frames = release >= (3, 11)


class ObjectNames:
    """Names objects and their words. `found`: for each block, the type of its object, or NO_OBJECT.
    No names are known for free-threaded interpreters, for interpreters of unknown version, and for
    targets with words of 4 bytes."""

    def __init__(self, target: Target, blocks: Blocks, known: Types, found: array[int], version: str) -> None:
        self._memory, self._blocks, self._known, self._found = Memory(target), blocks, known, found
        numbers = re.match(r"(\d+)\.(\d+)", version)  # A damaged core may lack the version.
        self.release = (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)
        self.layout = Layout(self.release)
        self.is_supported = numbers is not None and not known.shift and target.arch.word == 8
        self._keys: dict[int, Sequence[str]] = {}
        self._of_code: dict[int, tuple[Sequence[str], str]] = {}

    # -- objects

    def name_object(self, index: int) -> str:
        """Return a phrase for the object in a block: "list of 20", "function search", "coroutine
        wait_for_ever". Returns "" if the phrase would only repeat the type."""
        number = self._found[index] if self.is_supported else NO_OBJECT
        if number == NO_OBJECT:
            return ""
        address, name = self._object(index), self._known.name(number)
        plain = self._known.plain_name(number)
        length = self._length(number, plain, address)
        if length is not None:
            return f"{name} of {length:,}" if plain else f"{name}, {format_count(length, 'item')}"
        if plain == "function":
            return f"function {self._function_name(address)}".rstrip()
        if plain in _SUSPENDED:
            return f"{name} {self._code_name(self._code_of(address))}".rstrip()
        if plain == "frame":
            return f"frame {self._function_of(address)}".rstrip()
        if plain == "traceback":
            frame = self._memory.word(address + _TRACEBACK_FRAME) or 0
            function = self._function_of(frame) if self._plain(frame) == "frame" else ""
            line = self._memory.int32(address + _TRACEBACK_LINE) or 0
            # Since 3.11, the line is -1 until a program asks for it.
            return f"traceback {function}{f', line {line}' if 0 < line < 1 << 31 else ''}" if function else ""
        if name.endswith("asyncio.Task"):
            return f"asyncio task {self._task_name(address)}".rstrip()
        if plain == "method":
            return f"method {self._callable_name(address)}".rstrip()
        if name == _PARTIAL:
            return f"partial {self._callable_name(self._memory.word(address + 16) or 0)}".rstrip()
        if name == _LRU_CACHE:
            return self._name_lru_cache(address)
        if name in ("_contextvars.ContextVar", "ContextVar"):  # the name has no module up to 3.10
            return f"context variable {self._known.text(self._memory.word(address + 16) or 0)}".rstrip()
        return ""

    def _callable_name(self, address: int) -> str:
        """Return the name of a function or method; the type's name for another object."""
        plain = self._plain(address)
        if plain == "method":
            return self._function_name(self._memory.word(address + 16) or 0)
        return self._function_name(address) if plain == "function" else self.type_name(address)

    def _name_lru_cache(self, address: int) -> str:
        cache, function = (self._memory.word(address + at) or 0 for at in (_CACHE, _CACHED))
        length = self._memory.word(cache + 16) if self._plain(cache) == "dict" else None
        name = self._callable_name(function)
        return f"lru_cache of {length:,}, function {name}" if length is not None and name else ""

    def _length(self, number: int, plain: str, address: int) -> Optional[int]:
        flags = self._known.flags[number]
        if flags & (SUBCLASSES["list"] | SUBCLASSES["tuple"] | SUBCLASSES["dict"]):
            return self._memory.word(address + 16)
        return self._memory.word(address + _LENGTHS[plain]) if plain in _LENGTHS else None

    def _function_name(self, address: int) -> str:
        return self._known.text(self._memory.word(address + (40 if self.release >= (3, 10) else 104)) or 0)

    def _task_name(self, address: int) -> str:
        """Return the function whose coroutine a task runs; "" if unknown."""
        index = self._blocks.find(address)
        size = self._blocks.address(index) + self._blocks.size(index) - address if index >= 0 else 0
        for word in self._memory.words(address, min(_TASK_WORDS, size // self._memory.size)) or ():
            if word != address and self._plain(word) in _SUSPENDED:
                return self._code_name(self._code_of(word))
        return ""

    # -- words

    def name_member(self, address: int, holder: int = 0) -> str:
        """Return the name of a word in an object or in an object's storage; "" if unknown.

        `holder`: the object through which the word's block was reached, if known. Names that the
        program's author knows begin with "." or "[" or contain a space: ".cache", '["key"]',
        "closure variable kept". Other names are members of CPython's structures."""
        if not self.is_supported:
            return ""
        index = self._blocks.find(address)
        if index < 0 or self._blocks.state(index) != State.IN_USE:
            return ""
        number = self._found[index]
        if number == NO_OBJECT:
            return self._name_in_storage(index, address, holder)
        return self._name_in_object(number, self._object(index), address, holder)

    def _name_in_storage(self, index: int, address: int, holder: int) -> str:
        start = self._blocks.address(index)
        found = table(self._memory, start, self._blocks.size(index))
        if found is not None:
            entry, rest = divmod(address - found.first, found.stride)
            if not 0 <= entry < found.entries or rest != found.stride - 8:
                return ""
            key = self._memory.word(address - 8) or 0
            text = self._known.text(key)
            return f'["{text}"]' if text else "[key]" if key else ""
        at = self._blocks.find(holder) if holder else -1
        number = self._found[at] if at >= 0 else NO_OBJECT
        if number == NO_OBJECT:
            return ""
        if self._known.flags[number] & SUBCLASSES["list"]:
            return f"[{(address - start) // 8}]" if self._memory.word(self._object(at) + 24) == start else ""
        if self._known.plain_name(number) == "collections.deque":
            return "[item]"
        if self._known.flags[number] & SUBCLASSES["dict"]:
            return self._name_split_value(self._object(at), index, address)
        values = self._values(number, self._object(at))
        return self._attribute(number, address - values) if values and self._blocks.find(values) == index else ""

    def _name_split_value(self, dictionary: int, index: int, address: int) -> str:
        """Return the key of a value that is in a block of a dictionary's values. The keys are in a
        table that the instances of a class share."""
        keys, values = self._memory.words(dictionary + _DICT_KEYS, 2) or (0, 0)
        at = self._blocks.find(keys) if keys else -1
        if at < 0 or not values or self._blocks.find(values) != index:
            return ""
        kinds = (SPLIT,) if self.layout.has_frames else (GENERAL, UNICODE)
        found = table(self._memory, keys, self._blocks.address(at) + self._blocks.size(at) - keys, kinds)
        # Since 3.13, a word with numbers precedes the values.
        place, rest = divmod(address - values - (8 if self.release >= (3, 13) else 0), 8)
        if found is None or rest or not 0 <= place < found.entries:
            return ""
        key = self._memory.word(found.first + (place + 1) * found.stride - 16) or 0
        text = self._known.text(key)
        return f'["{text}"]' if text else ""

    def _name_in_object(self, number: int, start: int, address: int, holder: int) -> str:
        offset, flags = address - start, self._known.flags[number]
        plain = self._known.plain_name(number)
        if offset in (0, 8):
            return ("ob_refcnt", "ob_type")[offset // 8]
        if offset < 0:
            return "__dict__" if flags & MANAGED_DICT and offset in (-24, -32) else ""
        if flags & SUBCLASSES["tuple"]:
            return self._name_item(start, (offset - self._items) // 8, holder) if offset >= self._items else "ob_size"
        for name, members in (("list", _LIST), ("dict", _DICT)):
            if flags & SUBCLASSES[name] and offset in members:
                return members[offset]
        if plain == "function":
            return self._function.get(offset, "")
        if plain == "cell":
            return "cell_contents" if offset == 16 else ""
        if plain in _SUSPENDED:
            return self._name_local(start, address)
        if plain == "frame" and not self.layout.has_frames:
            # f_localsplus, an array of one word in the definition, is the last member.
            first = start + self._known.basic_size(number) - 8
            return self._name_variable(self._memory.word(start + _FRAME_CODE) or 0, address - first)
        if plain in WEAK:
            return "callback of weak reference" if offset == 24 else ""
        if self._known.name(number) == _LRU_CACHE:
            return {_CACHE: "cache", _CACHED: "__wrapped__"}.get(offset, "")
        if self._known.is_type(number) and offset in _TYPE:
            return _TYPE[offset]
        if plain == "frame":
            return self._name_in_frame_object(start, address)
        first = self._known.basic_size(number) + 8
        name = self._attribute(number, offset - first) if flags & INLINE_VALUES and offset >= first else ""
        return name or name_structure_member(self._known.name(number), bool(flags & EXCEPTION), offset, self.release)

    def _name_item(self, start: int, at: int, holder: int) -> str:
        """Return the name of item `at` of a tuple. `holder`: see name_member."""
        index = self._blocks.find(holder) if holder else -1
        if index < 0 or self._found[index] == NO_OBJECT or self._known.plain_name(self._found[index]) != "function":
            return f"[{at}]"
        function = self._object(index)
        member = next((name for offset, name in self._function.items() if self._memory.word(function + offset) == start), "")
        code = self.code_of_function(function)
        names, count = self.variables(code), self._memory.word(start + 16) or 0
        if member == _CLOSURE:
            place = len(names) - count + at
            return f"closure variable {names[place]}" if 0 <= place < len(names) else f"[{at}]"
        if member == _DEFAULTS:
            place = self._argument_count(code) - count + at
            return f"default of argument {names[place] if 0 <= place < len(names) else at + 1}"
        return f"[{at}]"

    def _argument_count(self, code: int) -> int:
        """Return co_argcount."""
        offset = 16 if self.release < (3, 11) else 56 if self.release == (3, 11) else 52
        return self._memory.int32(code + offset) or 0

    def _attribute(self, number: int, offset: int) -> str:
        """Return the name of the attribute whose value is at this offset in an object's values."""
        names = self.attribute_names(number)
        at, rest = divmod(offset, 8)
        return f".{names[at]}" if not rest and 0 <= at < len(names) and names[at] else ""

    def _values(self, number: int, start: int) -> int:
        """Return the address of an instance's values if they are outside the instance; 0 if it has
        none."""
        if not self._known.flags[number] & MANAGED_DICT or self._known.flags[number] & INLINE_VALUES:
            return 0
        if self.release == (3, 11):
            return self._memory.word(start - 32) or 0
        word = self._memory.word(start - 24) or 0
        return word + 1 if word & 1 else 0

    def attribute_names(self, number: int) -> Sequence[str]:
        """Return the names of attributes in the order of the values of a class's instances."""
        if number not in self._keys:
            self._keys[number] = self._read_shared_keys(self._known.addresses[number])
        return self._keys[number]

    def _read_shared_keys(self, type_: int) -> Sequence[str]:
        # The pointer to the keys (ht_cached_keys) is among the words after the type's own part.
        index = self._blocks.find(type_)
        end = self._blocks.address(index) + self._blocks.size(index) if index >= 0 else type_
        for word in self._memory.words(type_ + 400, max(0, end - type_ - 400) // 8) or ():
            at = self._blocks.find(word)
            if at >= 0 and self._blocks.address(at) == word and self._found[at] == NO_OBJECT:
                keys = table(self._memory, word, self._blocks.size(at), (SPLIT,))
                if keys is not None:
                    return [self._known.text(key) for _, key, _ in items(self._memory, keys, _MOST_NAMES)]
        return ()

    # -- code and frames

    def variables(self, code: int) -> Sequence[str]:
        """Return the names of a code object's variables in the order of its frames; () if it is no
        code object."""
        return self._names_of(code)[0]

    def code_name(self, code: int) -> str:
        """Return the qualified name of a code object; "" if the address is not that of a code
        object."""
        return self._code_name(code)

    def _code_name(self, code: int) -> str:
        return self._names_of(code)[1]

    def _names_of(self, code: int) -> tuple[Sequence[str], str]:
        """Return the names of a code object's variables, and its own name."""
        found = self._of_code.get(code)
        if found is None:
            found = self._of_code[code] = self._read_names(code)
        return found

    def _read_names(self, code: int) -> tuple[Sequence[str], str]:
        if self._plain(code) != "code":
            return (), ""
        words = self._memory.words(code, _CODE_WORDS.stop + 6) or ()
        for at in _CODE_WORDS if words else ():
            kinds = [self._plain(word) for word in words[at : at + 6]]
            # Names and kinds of variables, file, name, since 3.11 the qualified name.
            if kinds[:4] == ["tuple", "bytes", "str", "str"]:
                name = self._known.text(words[at + 4]) if kinds[4] == "str" else ""
                return self._strings(words[at]), name or self._known.text(words[at + 3])
            # Before 3.11: local, free and cell variables, a pointer, file, name.
            if self.release < (3, 11) and kinds[:3] == ["tuple"] * 3 and kinds[4:] == ["str", "str"]:
                local, free, cells = map(self._strings, words[at : at + 3])
                return [*local, *cells, *free], self._known.text(words[at + 5])
        return (), ""

    def _strings(self, tuple_: int) -> Sequence[str]:
        count = self._memory.word(tuple_ + 16) or 0
        found = self._memory.words(tuple_ + self._items, count) if 0 < count <= _MOST_NAMES else None
        return [self._known.text(word) for word in found or ()]

    def _code_of(self, suspended: int) -> int:
        frame = self.frame_of(suspended)
        return self._memory.word(frame + self.layout.code) or 0 if frame else 0

    def frame_of(self, suspended: int) -> int:
        """Return the address of the frame in a generator or coroutine; 0 if not found."""
        frames = (suspended + offset for offset in _FIRST_FRAME if self.layout.has_frames)
        return next(filter(self.is_frame, frames), 0)

    def _name_local(self, suspended: int, address: int) -> str:
        frame = self.frame_of(suspended)
        return self.name_in_frame(frame, address) if frame else ""

    def name_in_frame(self, frame: int, address: int) -> str:
        """Return "local variable x" for a word of a frame; "" for other words."""
        return self._name_variable(self._memory.word(frame + self.layout.code) or 0, address - frame - self.layout.variables)

    def _frame_of_object(self, start: int) -> int:
        """Return the address of the frame to which a frame object refers, since 3.11."""
        return self._memory.word(start + _FRAME) or 0

    def _function_of(self, start: int) -> str:
        """Return the name of the function of a frame object; "" if unknown."""
        code = self._frame_of_object(start) + self.layout.code if self.layout.has_frames else start + _FRAME_CODE
        return self._code_name(self._memory.word(code) or 0)

    def _name_in_frame_object(self, start: int, address: int) -> str:
        """Name a word of a frame object, which has the variables of an ended function."""
        return {16: "f_back", 32: "f_trace"}.get(address - start) or self.name_in_frame(self._frame_of_object(start), address)

    def _name_variable(self, code: int, offset: int) -> str:
        """Return "local variable x" for the word at this offset in the variables of a frame that
        executes `code`; "" for other words."""
        names = self.variables(code)
        at, rest = divmod(offset, 8)
        return f"local variable {names[at]}" if not rest and 0 <= at < len(names) and names[at] else ""

    def code_of_function(self, function: int) -> int:
        """Return the address of the code object of the function at an address; 0 if unreadable."""
        return self._memory.word(function + next(offset for offset, name in self._function.items() if name == _CODE)) or 0

    def is_frame(self, address: int) -> bool:
        """Whether a frame with a function and its code may begin at this address."""
        words = [self._memory.word(address + at) or 0 for at in (self.layout.function, self.layout.code)]
        return [self._plain(word) for word in words] == ["function", "code"]

    def is_suspended(self, address: int) -> bool:
        """Whether a generator or a coroutine begins at this address."""
        return bool(address) and self._plain(address) in _SUSPENDED

    def type_name(self, address: int) -> str:
        """Return the name of the type of the object that begins at this address; "" if there is
        none."""
        index = self._blocks.find(address) if address else -1
        number = self._found[index] if index >= 0 else NO_OBJECT
        return self._known.name(number) if number != NO_OBJECT and self._object(index) == address else ""

    # -- helpers

    def _object(self, index: int) -> int:
        return self._blocks.address(index) + self._known.offsets[self._found[index]]

    def _plain(self, address: int) -> str:
        """Return the name of the type of the object at `address` if it is one of the interpreter's
        own types; "" otherwise."""
        index = self._blocks.find(address) if address else -1
        number = self._found[index] if index >= 0 else NO_OBJECT
        if number != NO_OBJECT:
            return self._plain_names[number] if self._object(index) == address else ""
        type_ = self._memory.word(address + 8) if address else None
        number = self._known.number(type_) if type_ else -1
        return self._plain_names[number] if number >= 0 else ""

    @cached_property
    def _items(self) -> int:
        """The offset of a tuple's items: since 3.14, a hash precedes them."""
        number = next((number for number, name in enumerate(self._plain_names) if name == "tuple"), -1)
        return self._known.basic_size(number) if number >= 0 else 24

    @property
    def _function(self) -> Mapping[int, str]:
        """The members of a function, by offset."""
        return _FUNCTION if self.release >= (3, 10) else _OLD_FUNCTION

    @cached_property
    def _plain_names(self) -> Sequence[str]:
        return [self._known.plain_name(number) for number in range(len(self._known))]
