"""Types, template arguments, substitutions and the expressions that occur in them."""

from __future__ import annotations

from typing import Callable, Optional

from findleaks.demangle.reader import BadName, NameState, Reader, Type
from findleaks.demangle.tables import BUILTINS, BUILTINS_D, LITERAL_SUFFIXES, OPERATORS, STANDARD


def with_arguments(name: str, arguments: str) -> str:
    """`operator< <int>` needs a space."""
    return f"{name} {arguments}" if name.endswith("<") else name + arguments


def _close(arguments: list[str]) -> str:
    text = ", ".join(a for a in arguments if a)
    return f"<{text} >" if text.endswith(">") else f"<{text}>"


class Types(Reader):
    def encoding(self, shape: str = "whole") -> str:
        raise NotImplementedError

    def name(self, state: Optional[NameState]) -> str:
        raise NotImplementedError

    def source_name(self) -> str:
        raise NotImplementedError

    def unqualified(self, state: Optional[NameState], last: str) -> str:
        raise NotImplementedError

    # -- types -------------------------------------------------------------------------------------------------------------

    def type(self) -> Type:
        """One <type>; everything but a builtin or a substitution becomes a substitution itself."""
        self.down()
        try:
            return self.bounded(self._type())
        finally:
            self.depth -= 1

    def _type(self) -> Type:
        letter = self.peek()
        if letter in BUILTINS:
            self.at += 1
            return (BUILTINS[letter], "")
        if letter == "u":
            self.at += 1
            return self.remember((self.unqualified(None, "?"), ""))
        if letter in ("r", "V", "K"):
            return self.remember(self.qualified())
        if letter in ("P", "R", "O"):
            self.at += 1
            return self.remember(self.pointer(self.type(), {"P": "*", "R": "&", "O": "&&"}[letter]))
        if letter in ("C", "G"):
            self.at += 1
            inner = self.type()
            return self.remember((inner[0] + (" _Complex" if letter == "C" else " _Imaginary"), inner[1]))
        if letter == "F" or self.peek(2) in ("Do", "DO", "Dw", "Dx"):
            return self.remember(self.function(""))
        if letter == "A":
            return self.remember(self.array())
        if letter == "M":
            self.at += 1
            owner = "".join(self.type())
            return self.remember(self.pointer(self.type(), f"{owner}::*"))
        if letter == "T" and self.peek(2) not in ("Ts", "Tu", "Te"):
            found = self.remember((self.template_parameter(), ""))
            if self.peek() == "I":
                return self.remember((found[0] + self.template_arguments(None), ""))
            return found
        if letter == "D":
            return self.d_type()
        if letter == "S" and self.peek(2) != "St":
            found = self.substitution()
            if self.peek() == "I":
                return self.remember(("".join(found) + self.template_arguments(None), ""))
            return found
        if self.peek(2) in ("Ts", "Tu", "Te"):
            self.at += 2
        return self.remember((self.name(None), ""))

    def qualified(self) -> Type:
        words = ""
        for letter, word in (("r", " restrict"), ("V", " volatile"), ("K", " const")):
            if self.eat(letter):
                words = word + words
        if self.peek() == "F" or self.peek(2) in ("Do", "DO"):  # a member function's qualifiers
            return self.function(words)
        inner = self.type()
        return (inner[0] + words if inner[0] else "", inner[1])

    @staticmethod
    def pointer(inner: Type, mark: str) -> Type:
        before, after = inner
        if not before:  # an empty parameter pack
            return inner
        if mark in ("&", "&&") and before.endswith("&") and (not after or after.startswith(")")):  # references collapse
            return (before[:-1] if mark == "&" and before.endswith("&&") else before, after)
        spaced = mark if mark[0] in "*&" else " " + mark
        if after.startswith((" [", "(", ")(")) and not before.endswith("("):
            return (before + ("(" if before.endswith(" ") else " (") + mark, ")" + after)
        return (before + (mark if before.endswith("(") else spaced), after)

    def function(self, suffix: str) -> Type:
        if self.eat("DO"):
            self.expression()
            self.need("E")
        elif self.eat("Dw"):
            while not self.eat("E"):
                self.type()
        elif not self.eat("Dx"):
            if self.eat("Do"):
                suffix += " noexcept"
        self.need("F")
        self.eat("Y")
        returned = self.type()
        found: list[str] = []
        while not self.eat("E"):
            if self.peek(2) in ("RE", "OE"):
                suffix += " &" if self.peek() == "R" else " &&"
                self.at += 1
                continue
            found.append("".join(self.type()))
            if len(found) > 200:
                raise BadName
        text = "" if found == ["void"] else ", ".join(f for f in found if f)
        return (returned[0] + " ", f"({text}){suffix}{returned[1]}")

    def array(self) -> Type:
        self.need("A")
        if self.eat("_"):
            size = ""
        elif "0" <= self.peek() <= "9":
            size = str(self.number())
            self.need("_")
        else:
            size = self.expression()
            self.need("_")
        inner = self.type()
        after = inner[1][1:] if inner[1].startswith(" [") else inner[1]
        return (inner[0], f" [{size}]{after}")

    def d_type(self) -> Type:
        letter = self.peek(2)[1:]
        if letter in ("t", "T"):
            return self.remember((self.decltype(), ""))
        if letter == "p":
            self.at += 2
            return self.remember(self.type())
        if letter == "v":
            self.at += 2
            size = self.expression() if self.eat("_") else str(self.number())
            self.need("_")
            return self.remember(("".join(self.type()) + f" __vector({size})", ""))
        if letter == "F":
            self.at += 2
            bits = self.number()
            if self.eat("b"):
                return ("std::bfloat16_t", "")
            extended = self.eat("x")
            if not extended:
                self.need("_")
            return (f"_Float{bits}{'x' if extended else ''}", "")
        if letter in ("B", "U"):
            self.at += 2
            size = str(self.number()) if self.peek().isdigit() else self.expression()
            self.need("_")
            return (f"{'unsigned ' if letter == 'U' else ''}_BitInt({size})", "")
        if letter and letter in BUILTINS_D:
            self.at += 2
            return (BUILTINS_D[letter], "")
        raise BadName

    def decltype(self) -> str:
        self.at += 2
        shown = self.expression()
        self.need("E")
        return f"decltype ({shown})"

    # -- template arguments and substitutions ----------------------------------------------------------------------------

    def template_arguments(self, state: Optional[NameState]) -> str:
        self.need("I")
        found: list[str] = []
        while not self.eat("E"):
            if self.eat("Q"):  # a constraint
                self.expression()
                continue
            found.append(self.template_argument())
            if state is not None:
                self.arguments = found
            if len(found) > 500:
                raise BadName
        return _close(found)

    def template_argument(self) -> str:
        if self.eat("X"):
            shown = self.expression()
            self.need("E")
            return shown
        if self.peek() == "L":
            return self.literal()
        if self.eat("J"):
            pack: list[str] = []
            while not self.eat("E"):
                pack.append(self.template_argument())
            return self.bounded((", ".join(p for p in pack if p), ""))[0]
        return "".join(self.type())

    def template_parameter(self) -> str:
        self.need("T")
        if self.eat("L"):
            self.number()
            self.need("_")
        index = self.sequence("0123456789")
        if self.in_lambda:
            return f"auto:{index + 1}"
        if index >= len(self.arguments):
            raise BadName
        return self.arguments[index]

    def substitution(self) -> Type:
        two = self.peek(2)
        if two in STANDARD:
            self.at += 2
            shown = STANDARD[two][0]
            if self.peek() == "B":
                while self.eat("B"):
                    shown += f"[abi:{self.source_name()}]"
                return self.remember((shown, ""))
            return (shown, "")
        self.need("S")
        index = self.sequence("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")
        if index >= len(self.substitutions):
            raise BadName
        return self.substitutions[index]

    # -- expressions: those that occur in types ----------------------------------------------------------------------------

    def expression(self) -> str:
        self.down()
        try:
            return self.bounded((self._expression(), ""))[0]
        finally:
            self.depth -= 1

    def _expression(self) -> str:
        two = self.peek(2)
        if two[:1] == "L":
            return self.literal()
        if two[:1] == "T":
            return self.template_parameter()
        if two in ("fp", "fL"):
            return self.function_parameter()
        if two in ("st", "at"):
            self.at += 2
            return f"{'sizeof' if two == 'st' else 'alignof'} ({''.join(self.type())})"
        if two in ("sz", "az", "nx", "sZ", "sP"):
            self.at += 2
            word = {"sz": "sizeof", "az": "alignof", "nx": "noexcept"}.get(two, "sizeof...")
            if two == "sP":
                return f"{word}({', '.join(self.until_end(self.template_argument))})"
            return f"{word} ({self.expression()})"
        if two == "sp":
            self.at += 2
            return self.expression() + "..."
        if two in ("cl", "cv", "tl", "il"):
            return self.call(two)
        if two in ("sc", "dc", "cc", "rc"):
            self.at += 2
            word = {"s": "static", "d": "dynamic", "c": "const", "r": "reinterpret"}[two[0]]
            return f"{word}_cast<{''.join(self.type())}>({self.expression()})"
        if two in ("dt", "pt"):
            self.at += 2
            return f"{self.expression()}{'.' if two == 'dt' else '->'}{self.expression()}"
        if two == "qu":
            self.at += 2
            return f"({self.expression()})?({self.expression()}):({self.expression()})"
        if two == "ix":
            self.at += 2
            return f"({self.expression()})[{self.expression()}]"
        if two == "sr":
            return self.scoped()
        if two == "on":
            self.at += 2
            return self.simple_name()
        if two in OPERATORS and OPERATORS[two][1]:
            self.at += 2
            word, operands = OPERATORS[two]
            if operands == 1:
                self.eat("_")
                if two == "ad" and self.peek(2) == "L_":
                    return word + self.literal()
                return f"{word}({self.expression()})"
            left = self.expression()
            shown = f"({left}){word}({self.expression()})"
            return f"({shown})" if word == ">" else shown
        return self.simple_name()

    def until_end(self, one: Callable[[], str]) -> list[str]:
        found: list[str] = []
        while not self.eat("E"):
            found.append(one())
            if len(found) > 200:
                raise BadName
        return found

    def call(self, two: str) -> str:
        self.at += 2
        if two == "cl":
            return f"{self.expression()}({', '.join(self.until_end(self.expression))})"
        if two == "il":
            return f"{{{', '.join(self.until_end(self.expression))}}}"
        type_ = "".join(self.type())
        if two == "tl":
            return f"{type_}{{{', '.join(self.until_end(self.expression))}}}"
        if self.eat("_"):
            return f"({type_})({', '.join(self.until_end(self.expression))})"
        return f"({type_})({self.expression()})"

    def simple_name(self) -> str:
        shown = self.unqualified(None, "")
        return with_arguments(shown, self.template_arguments(None)) if self.peek() == "I" else shown

    def scoped(self) -> str:
        self.need("sr")
        if self.eat("N"):
            parts = ["".join(self.type())]
            while not self.eat("E"):
                parts.append(self.simple_name())
            return "::".join([*parts, self.simple_name()])
        return f"{''.join(self.type())}::{self.simple_name()}"

    def function_parameter(self) -> str:
        if self.eat("fL"):
            self.number()
            self.need("p")
        else:
            self.need("fp")
        if self.eat("T"):
            return "this"
        while self.peek() in ("r", "V", "K"):
            self.at += 1
        return f"{{parm#{self.sequence('0123456789') + 1}}}"

    def literal(self) -> str:
        self.need("L")
        if self.eat("_Z") or self.eat("Z"):
            shown = self.encoding("name")
            self.need("E")
            return shown
        type_ = "".join(self.type())
        end = self.text.find("E", self.at)
        if end < 0 or end - self.at > 100:
            raise BadName
        value, self.at = self.text[self.at : end], end + 1
        if value.startswith("n"):
            value = "-" + value[1:]
        if type_ == "bool" and value in ("0", "1"):
            return "true" if value == "1" else "false"
        if type_ in LITERAL_SUFFIXES:
            return value + LITERAL_SUFFIXES[type_]
        return f"({type_}){value}"
