"""Encodings and names: the part of the grammar above types."""

from __future__ import annotations

from typing import Optional

from findleaks.demangle.reader import BadName, NameState, Type
from findleaks.demangle.tables import OPERATORS, SPECIAL, STANDARD
from findleaks.demangle.type_names import Types, with_arguments


class Names(Types):
    def encoding(self, shape: str = "whole") -> str:
        """A function or object; `shape` "local" leaves out the return type, "name" the parameters, too."""
        self.down()
        special = self.special()
        if special is not None:
            self.depth -= 1
            return special
        state = NameState()
        outer, self.arguments = self.arguments, []
        name = self.name(state)
        if self.peek() in ("", "E", "."):
            shown = name
        else:
            returned: Type = ("", "")
            if state.template and not state.no_return:
                returned = self.type()
                if returned[0] and returned[0][-1] not in " (":
                    returned = (returned[0] + " ", returned[1])
            parameters = self.parameters()
            if shape != "whole":
                returned = ("", "")
            shown = name if shape == "name" else f"{returned[0]}{name}({parameters}){state.suffix}{returned[1]}"
        self.arguments = outer
        self.depth -= 1
        return self.bounded((shown, ""))[0]

    def parameters(self) -> str:
        found: list[str] = []
        while self.peek() not in ("", "E", ".", "@") and self.peek(2) not in ("RE", "OE"):
            found.append("".join(self.type()))
            if len(found) > 200:
                raise BadName
        if not found:
            raise BadName
        return "" if found == ["void"] else ", ".join(f for f in found if f)

    def special(self) -> Optional[str]:
        two = self.peek(2)
        if two == "GT" and self.peek(3)[2:] in ("t", "n"):
            self.at += 3
            return "transaction clone for " + self.encoding()
        if two in SPECIAL:
            self.at += 2
            what, kind = SPECIAL[two]
            if kind == "type":
                return what + "".join(self.type())
            if kind == "thunk":
                self.offset(two[1])
                return what + self.encoding()
            if kind == "covariant":
                self.offset(self.take())
                self.offset(self.take())
                return what + self.encoding()
            if kind == "construction":
                whole = "".join(self.type())
                self.number()
                self.need("_")
                return f"{what}{''.join(self.type())}-in-{whole}"
            shown = what + self.name(None)
            if kind == "temporary":
                self.sequence("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")
            return shown
        return None

    def take(self) -> str:
        self.at += 1
        return self.text[self.at - 1]

    def offset(self, kind: str) -> None:
        if kind not in "hv":
            raise BadName
        for _ in range(1 if kind == "h" else 2):
            self.eat("n")
            self.number()
            self.need("_")

    def name(self, state: Optional[NameState]) -> str:
        self.down()
        try:
            if self.eat("N"):
                return self.nested(state)
            if self.eat("Z"):
                return self.local(state)
            if self.peek() == "S" and self.peek(2) != "St":
                shown = "".join(self.substitution())
                if self.peek() != "I":
                    raise BadName
            else:
                prefix = "std::" if self.eat("St") else ""
                shown = prefix + self.unqualified(state, "")
                if self.peek() == "I":
                    self.remember((shown, ""))
            if self.peek() == "I":
                shown = with_arguments(shown, self.template_arguments(state))
                if state:
                    state.template = True
            return shown
        finally:
            self.depth -= 1

    def nested(self, state: Optional[NameState]) -> str:
        suffix = ""
        for letter, word in (("r", " restrict"), ("V", " volatile"), ("K", " const")):
            if self.eat(letter):
                suffix = word + suffix
        if self.eat("R"):
            suffix += " &"
        elif self.eat("O"):
            suffix += " &&"
        self.eat("H")  # explicit object parameter
        if state:
            state.suffix = suffix
        shown, last, pushed, tail = "", "", False, False
        while not self.eat("E"):
            pushed = True
            tail = False
            letter = self.peek()
            if letter == "S" and not shown:
                if self.eat("St"):
                    shown, last, pushed = "std", "std", False
                    continue
                if self.peek(2) in STANDARD and self.text[self.at + 2 : self.at + 3] in ("C", "D"):
                    shown, last = STANDARD[self.peek(2)][1:]
                    self.at += 2
                else:
                    shown = "".join(self.substitution())
                    last = self.last_name(shown)
                pushed = False
                continue
            if letter == "T":
                if shown:
                    raise BadName
                shown = last = self.template_parameter()
            elif letter == "D" and self.peek(2) in ("Dt", "DT"):
                shown = last = self.decltype()
            elif letter == "I":
                if not shown:
                    raise BadName
                shown = with_arguments(shown, self.template_arguments(state))
                tail = True
            elif letter == "M":
                self.at += 1
                continue
            else:
                if state:
                    state.no_return = False
                part = self.unqualified(state, last)
                shown = f"{shown}::{part}" if shown else part
                last = part
            self.remember((shown, ""))
        if not shown or not pushed or not self.substitutions:
            raise BadName
        self.substitutions.pop()
        if state:
            state.template = tail
        return shown

    @staticmethod
    def last_name(shown: str) -> str:
        """`a::b<c::d>` -> `b`, for constructors."""
        depth, end, begin = 0, len(shown), 0
        for i in range(len(shown) - 1, -1, -1):
            c = shown[i]
            if c == ">":
                depth += 1
            elif c == "<":
                depth -= 1
                if depth == 0:
                    end = i
            elif c == ":" and depth == 0:
                begin = i + 1
                break
        return shown[begin:end]

    def local(self, state: Optional[NameState]) -> str:
        outer = self.encoding("local")
        self.need("E")
        if self.eat("s"):
            self.discriminator()
            return outer + "::string literal"
        if self.eat("d"):
            if not self.eat("_"):
                self.number()
                self.need("_")
        shown = self.name(state)
        self.discriminator()
        return f"{outer}::{shown}"

    def discriminator(self) -> None:
        if self.eat("__"):
            self.number()
            self.need("_")
        elif self.peek() == "_" and self.peek(2)[1:].isdigit():
            self.at += 2

    def unqualified(self, state: Optional[NameState], last: str) -> str:
        self.eat("L")
        self.eat("F")
        letter = self.peek()
        if "0" <= letter <= "9":
            shown = self.source_name()
        elif letter == "U":
            shown = self.unnamed()
        elif letter == "C" and last:
            self.at += 1
            inherited = self.eat("I")
            self.at += 1
            if inherited:
                self.type()
            shown = self.last_name(last)
            if state:
                state.no_return = True
        elif letter == "D" and self.peek(2) == "DC":
            self.at += 2
            parts = []
            while not self.eat("E"):
                parts.append(self.source_name())
            shown = f"[{', '.join(parts)}]"
        elif letter == "D" and last:
            self.at += 2
            shown = "~" + self.last_name(last)
            if state:
                state.no_return = True
        else:
            shown = self.operator(state)
        while self.eat("B"):
            shown += f"[abi:{self.source_name()}]"
        return shown

    def source_name(self) -> str:
        length = self.number()
        shown = self.peek(length)
        if not length or len(shown) != length:
            raise BadName
        self.at += length
        return "(anonymous namespace)" if shown.startswith(("_GLOBAL__N", "_GLOBAL_.N", "_GLOBAL_$N")) else shown

    def unnamed(self) -> str:
        if self.eat("Ut"):
            return f"{{unnamed type#{self.ordinal()}}}"
        self.need("Ul")
        self.in_lambda += 1
        while self.peek(2) in ("Ty", "Tn", "Tt", "Tp"):  # explicit template parameters
            self.at += 2
            if self.text[self.at - 1] == "n":
                self.type()
        parameters = self.parameters()
        self.in_lambda -= 1
        self.need("E")
        return f"{{lambda({parameters})#{self.ordinal()}}}"

    def ordinal(self) -> int:
        if self.eat("_"):
            return 1
        found = self.number() + 2
        self.need("_")
        return found

    def operator(self, state: Optional[NameState]) -> str:
        two = self.peek(2)
        if two == "cv":
            self.at += 2
            if state:
                state.no_return = True
            return "operator " + "".join(self.type())
        if two == "li":
            self.at += 2
            return 'operator"" ' + self.source_name()
        if two not in OPERATORS:
            raise BadName
        self.at += 2
        word = OPERATORS[two][0]
        return "operator" + (" " if word[0].isalpha() else "") + word
