"""Reading the characters of a mangled name, within bounds."""

from __future__ import annotations

Type = tuple[str, str]
"""Text before and after the place where a declarator stands: ("void (", ")(int)") for a function."""

DEPTH = 96
LONGEST = 4096


class BadName(Exception):
    """Not a mangled name, or one beyond the bounds."""


class NameState:
    """What an encoding must know of the name in front of its parameters."""

    def __init__(self) -> None:
        self.template = False  # ends with template arguments: a return type follows
        self.no_return = False  # constructor, destructor or conversion
        self.suffix = ""  # " const", " &" …


class Reader:
    def __init__(self, text: str, at: int) -> None:
        self.text = text
        self.at = at
        self.depth = 0
        self.substitutions: list[Type] = []
        self.arguments: list[str] = []  # what T_, T0_ … stand for
        self.in_lambda = 0

    def peek(self, count: int = 1) -> str:
        return self.text[self.at : self.at + count]

    def eat(self, text: str) -> bool:
        if self.text.startswith(text, self.at):
            self.at += len(text)
            return True
        return False

    def need(self, text: str) -> None:
        if not self.eat(text):
            raise BadName

    def number(self) -> int:
        begin = self.at
        while self.at - begin < 9 and "0" <= self.peek() <= "9":
            self.at += 1
        if begin == self.at:
            raise BadName
        return int(self.text[begin : self.at])

    def sequence(self, digits: str) -> int:
        """`_` is 0, `0_` is 1, in base len(digits)."""
        value = -1
        while not self.eat("_"):
            value = max(value, 0) * len(digits) + digits.index(self.peek()) if self.peek() and self.peek() in digits else -2
            if value < 0 or value > 1 << 20:
                raise BadName
            self.at += 1
        return value + 1

    def down(self) -> None:
        self.depth += 1
        if self.depth > DEPTH:
            raise BadName

    def bounded(self, type_: Type) -> Type:
        if len(type_[0]) + len(type_[1]) > LONGEST:
            raise BadName
        return type_

    def remember(self, type_: Type) -> Type:
        if len(self.substitutions) > 1000:
            raise BadName
        self.substitutions.append(self.bounded(type_))
        return type_
