"""Read Rust's symbol names in the v0 scheme.

RFC 2603 (https://rust-lang.github.io/rfcs/2603-rust-symbol-name-mangling-v0.html), with the
constants of const generics that the rustc book, "v0 Symbol Format", adds. The text is that of
rustc-demangle's alternate form: no hashes of crates, no types of constants.

Names come from untrusted memory. A backref repeats an earlier part, so a short name can describe a
text of any length. A name is therefore invalid if its text exceeds LONGEST_TEXT characters, if it
is nested deeper than _DEEPEST, or if it takes more than _MOST_STEPS steps."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Optional

LONGEST_TEXT = 4096  # characters of a readable name
_DEEPEST = 100  # Python's stack allows about 1,000 calls, and a level takes up to five
_MOST_STEPS = 20_000  # number of paths, types, constants and backrefs

_BASIC_TYPES = {
    **{"a": "i8", "b": "bool", "c": "char", "d": "f64", "e": "str", "f": "f32", "h": "u8"},
    **{"i": "isize", "j": "usize", "l": "i32", "m": "u32", "n": "i128", "o": "u128", "s": "i16"},
    **{"t": "u16", "u": "()", "v": "...", "x": "i64", "y": "u64", "z": "!", "p": "_"},
}
_SIGNED, _UNSIGNED = "aslxni", "htmyoj"
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\0": "\\0", "'": "\\'", '"': '\\"', "\\": "\\\\"}
_DECIMAL, _HEX_DIGITS = re.compile(r"0|[1-9][0-9]{0,4}"), re.compile(r"([0-9a-f]*)_")
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def read_v0(name: str) -> Optional[str]:
    """Return the text of a name without prefix `_R` and suffixes; None if it is invalid."""
    reader = _V0Reader(name)
    try:
        reader.path(in_value=True)
        if reader.peek().isupper():  # the crate that instantiates a generic function
            reader.hidden += 1
            reader.path(in_value=False)
    except (_InvalidName, RecursionError):
        return None
    return "".join(reader.text) if reader.at == len(name) else None


class _InvalidName(ValueError):
    """The name does not follow the grammar, or exceeds a limit."""


class _V0Reader:
    """A recursive-descent parser. Methods are named after the symbols of the grammar. Each reads
    its symbol at `at` and appends its text. All raise `_InvalidName`.

    While `hidden` is above 0, symbols are read and not shown. `lifetimes` is the number of
    lifetimes that the enclosing binders introduce."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.at = self.hidden = self.depth = self.steps = self.length = self.lifetimes = 0
        self.text: list[str] = []

    def peek(self) -> str:
        return self.name[self.at : self.at + 1]

    def next(self) -> str:
        letter = self.peek()
        if not letter:
            raise _InvalidName
        self.at += 1
        return letter

    def accept(self, letter: str) -> bool:
        found = self.peek() == letter
        self.at += found
        return found

    def write(self, text: str) -> None:
        if self.hidden:
            return
        self.length += len(text)
        if self.length > LONGEST_TEXT:
            raise _InvalidName
        self.text.append(text)

    def enter(self) -> None:
        self.depth += 1
        self.steps += 1
        if self.depth > _DEEPEST or self.steps > _MOST_STEPS:
            raise _InvalidName

    def base_62(self) -> int:
        """Read a number: `_` is 0, `0_` is 1, `Z_` is 62."""
        value = 0
        if self.accept("_"):
            return 0
        while not self.accept("_"):
            digit = _DIGITS.find(self.next())
            if digit < 0 or value > 1 << 64:
                raise _InvalidName
            value = value * 62 + digit
        return value + 1

    def optional_base_62(self, tag: str) -> int:
        """Return 0 if `tag` does not follow; else the number after it, plus 1."""
        return self.base_62() + 1 if self.accept(tag) else 0

    def decimal(self) -> int:
        digits = _DECIMAL.match(self.name, self.at)
        if digits is None:
            raise _InvalidName
        self.at = digits.end()
        return int(digits.group())

    def undisambiguated_identifier(self) -> str:
        is_punycode = self.accept("u")
        length = self.decimal()
        self.accept("_")
        identifier = self.name[self.at : self.at + length]
        if len(identifier) != length:
            raise _InvalidName
        self.at += length
        return _decode_punycode(identifier) if is_punycode else identifier

    def backref(self, read: Callable[[], None]) -> None:
        """Read B and a number. The symbol at that position is read once more."""
        start = self.at - 1
        target = self.base_62()
        if target >= start:
            raise _InvalidName
        if self.hidden:
            return
        after, self.at = self.at, target
        self.enter()
        read()
        self.depth -= 1
        self.at = after

    def path(self, in_value: bool) -> None:
        """Read a path. `in_value`: write generic arguments as in `::<T>`, not as in `<T>`."""
        self.enter()
        tag = self.next()
        if tag == "C":
            self.optional_base_62("s")
            self.write(self.undisambiguated_identifier())
        elif tag == "N":
            self.nested_path(in_value)
        elif tag in "MX":
            self.optional_base_62("s")
            self.hidden += 1
            self.path(in_value=False)  # the place of the impl: not part of what the name refers to
            self.hidden -= 1
            self.write("<")
            self.type()
            self.implemented_trait(tag == "X")
        elif tag == "Y":
            self.write("<")
            self.type()
            self.implemented_trait(True)
        elif tag == "I":
            self.path(in_value)
            self.write("::<" if in_value else "<")
            self.list(self.generic_argument)
            self.write(">")
        elif tag == "B":
            self.backref(lambda: self.path(in_value))
        else:
            raise _InvalidName
        self.depth -= 1

    def implemented_trait(self, is_present: bool) -> None:
        if is_present:
            self.write(" as ")
            self.path(in_value=False)
        self.write(">")

    def nested_path(self, in_value: bool) -> None:
        namespace = self.next()
        if not namespace.isalpha():
            raise _InvalidName
        self.path(in_value)
        number = self.optional_base_62("s")
        identifier = self.undisambiguated_identifier()
        if namespace.isupper():
            kind = {"C": "closure", "S": "shim"}.get(namespace, namespace)
            self.write("::{" + kind + (f":{identifier}" if identifier else "") + f"#{number}" + "}")
        elif identifier:
            self.write("::" + identifier)

    def list(self, read: Callable[[], None], separator: str = ", ") -> int:
        """Read symbols up to E. Returns their number."""
        count = 0
        while not self.accept("E"):
            if count:
                self.write(separator)
            read()
            count += 1
        return count

    def generic_argument(self) -> None:
        if self.accept("L"):
            self.lifetime(self.base_62())
        elif self.accept("K"):
            self.constant()
        else:
            self.type()

    def lifetime(self, index: int) -> None:
        """`index` counts from the innermost lifetime (1) outward; 0 is `'_`. `'a` is outermost."""
        depth = self.lifetimes - index
        if self.hidden:
            return
        if index == 0:
            self.write("'_")
        elif depth < 0:
            raise _InvalidName
        else:
            self.write("'" + (chr(ord("a") + depth) if depth < 26 else f"_{depth}"))

    def bound(self, read: Callable[[], None]) -> None:
        """Read a symbol after an optional binder: `for<'a, 'b> `."""
        count = self.optional_base_62("G")
        if count > LONGEST_TEXT:
            raise _InvalidName
        if count:
            self.write("for<")
            for number in range(count):
                self.write(", " * (number > 0))
                self.lifetimes += 1
                self.lifetime(1)
            self.write("> ")
        read()
        self.lifetimes -= count

    def type(self) -> None:
        self.enter()
        tag = self.next()
        if tag in _BASIC_TYPES:
            self.write(_BASIC_TYPES[tag])
        elif tag in "RQ":
            self.write("&")
            index = self.base_62() if self.accept("L") else 0
            if index:
                self.lifetime(index)
                self.write(" ")
            self.write("mut " * (tag == "Q"))
            self.type()
        elif tag in "PO":
            self.write("*mut " if tag == "O" else "*const ")
            self.type()
        elif tag in "AS":
            self.write("[")
            self.type()
            if tag == "A":
                self.write("; ")
                self.constant()
            self.write("]")
        elif tag == "T":
            self.write("(")
            self.write("," * (self.list(self.type) == 1))
            self.write(")")
        elif tag == "F":
            self.bound(self.function_signature)
        elif tag == "D":
            self.dynamic_type()
        elif tag == "B":
            self.backref(self.type)
        else:
            self.at -= 1
            self.path(in_value=False)
        self.depth -= 1

    def function_signature(self) -> None:
        self.write("unsafe " * self.accept("U"))
        if self.accept("K"):
            abi = "C" if self.accept("C") else self.undisambiguated_identifier().replace("_", "-")
            self.write(f'extern "{abi}" ')
        self.write("fn(")
        self.list(self.type)
        self.write(")")
        if not self.accept("u"):
            self.write(" -> ")
            self.type()

    def dynamic_type(self) -> None:
        self.write("dyn ")
        self.bound(self.dynamic_traits)
        if self.next() != "L":
            raise _InvalidName
        index = self.base_62()
        if index:
            self.write(" + ")
            self.lifetime(index)

    def dynamic_traits(self) -> None:
        self.list(self.dynamic_trait, " + ")

    def dynamic_trait(self) -> None:
        """Read a trait and the types of its items in one pair of brackets: `A<Item = u8>`."""
        is_open = self.open_path()
        while self.accept("p"):
            self.write(", " if is_open else "<")
            is_open = True
            self.write(self.undisambiguated_identifier() + " = ")
            self.type()
        self.write(">" * is_open)

    def open_path(self) -> bool:
        """Read a path whose generic arguments stay open. Returns whether it has any."""
        if self.accept("I"):
            self.path(in_value=False)
            self.write("<")
            self.list(self.generic_argument)
            return True
        if self.accept("B"):
            opened: list[bool] = []
            self.backref(lambda: opened.append(self.open_path()))
            return bool(opened and opened[0])
        self.path(in_value=False)
        return False

    def constant(self) -> None:
        self.enter()
        tag = self.next()
        if tag in _SIGNED or tag in _UNSIGNED:
            is_negative = tag in _SIGNED and self.accept("n")
            self.write("-" * is_negative + str(self.hex_number()))
        elif tag == "b":
            number = self.hex_number()
            if number > 1:
                raise _InvalidName
            self.write("true" if number else "false")
        elif tag == "c":
            number = self.hex_number()
            if number >= 0x11_0000 or 0xD800 <= number < 0xE000:
                raise _InvalidName
            self.write(f"'{_escape(chr(number))}'")
        elif tag == "p":
            self.write("_")
        elif tag == "e":
            self.write("*")
            self.string()
        elif tag == "R" and self.accept("e"):
            self.string()
        elif tag in "RQ":
            self.write("&mut " if tag == "Q" else "&")
            self.constant()
        elif tag == "A":
            self.write("[")
            self.list(self.constant)
            self.write("]")
        elif tag == "T":
            self.write("(")
            self.write("," * (self.list(self.constant) == 1))
            self.write(")")
        elif tag == "V":
            self.path(in_value=True)
            self.fields()
        elif tag == "B":
            self.backref(self.constant)
        else:
            raise _InvalidName
        self.depth -= 1

    def fields(self) -> None:
        """Read the fields of a constant structure: U none, T a tuple's, S named ones."""
        kind = self.next()
        if kind == "T":
            self.write("(")
            self.list(self.constant)
            self.write(")")
        elif kind == "S":
            self.write(" { ")
            self.list(self.field)
            self.write(" }")
        elif kind != "U":
            raise _InvalidName

    def field(self) -> None:
        self.optional_base_62("s")
        self.write(self.undisambiguated_identifier() + ": ")
        self.constant()

    def hex_digits(self) -> str:
        match = _HEX_DIGITS.match(self.name, self.at)
        if match is None:
            raise _InvalidName
        self.at = match.end()
        return match.group(1)

    def hex_number(self) -> int:
        digits = self.hex_digits().lstrip("0")
        if len(digits) > 32:
            raise _InvalidName
        return int(digits or "0", 16)

    def string(self) -> None:
        digits = self.hex_digits()
        try:
            text = bytes.fromhex(digits).decode("utf-8")
        except ValueError:
            raise _InvalidName from None
        self.write('"' + "".join(map(_escape, text)) + '"')


def _escape(letter: str) -> str:
    """Return a character as it is written in a literal of Rust."""
    if letter in _ESCAPES:
        return _ESCAPES[letter]
    return letter if letter.isprintable() else f"\\u{{{ord(letter):x}}}"


def _decode_punycode(identifier: str) -> str:
    """Decode RFC 3492, with "_" instead of "-" between the ASCII letters and the insertions."""
    ascii_letters, _, insertions = identifier.rpartition("_")
    try:
        text = f"{ascii_letters}-{insertions}".encode("ascii").decode("punycode")
    except (UnicodeError, ValueError, OverflowError):
        raise _InvalidName from None
    if not text.isprintable():
        raise _InvalidName
    return text
