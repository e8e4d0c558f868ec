"""Name Go's global variables: by the program's symbols, or by the functions that use them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Optional

from findleaks.formatting import some
from findleaks.runtimes.go.code_references import OPERANDS, find_users
from findleaks.runtimes.go.pclntab import FunctionTable
from findleaks.target.base import Target

_SECTIONS = ("runtime.bss", "runtime.data")  # symbols of whole sections


_LARGEST = 256  # bytes of a variable in which a field is looked for
_INITIALISER = ".init"  # the last part of the name of a package's initialiser


def _bases(address: int) -> range:
    """Return addresses at which a variable may begin that contains this address, nearest first."""
    return range(address, max(address - _LARGEST, 0), -8)


class VariableNames:
    """The names of variables. `words`: address and value of each word of global variables."""

    def __init__(self, target: Target, tables: Sequence[FunctionTable], words: Iterable[tuple[int, int]]) -> None:
        self._target, self._tables, self._words = target, tables, words
        self._owners: Optional[dict[int, list[int]]] = None
        self._users: dict[int, list[str]] = {}

    def find_users_of(self, addresses: Collection[int]) -> None:
        """Look up the functions that use these variables. All are looked up in one pass over the
        code, so this is called before `name` if several names are needed."""
        bases = {base for address in addresses for base in _bases(address)}
        wanted = {*bases, *(owner for base in bases for owner in self._owners_of(base))}
        missing = {address for address in wanted if address not in self._users}
        if missing and self._target.arch.name in OPERANDS:
            found = find_users(self._target, self._tables, missing)
            self._users.update((address, found.get(address, [])) for address in missing)

    def name(self, address: int) -> str:
        """Return the name of the variable at an address: "variable main.sessions", or in a stripped
        program "variable at 0x5a5bd8 (used in main.fill)".

        The compiler also creates variables without a name, such as X for `var cache = &X{}`. These
        get the name of a variable that refers to them. Code contains only the address of the first
        byte of a structure such as sync.Map, so a field may get the name "variable at 0x5a5bd8 (at
        +16 of one used in main.fill)"."""
        name = self.symbol(address)
        if name:
            return f"variable {name}"
        owner = self.owner(address)
        if owner:
            return f"variable {owner} (through {address:#x})"
        users, distance = self.users_of(address), 0
        if all(one.endswith(_INITIALISER) for one in users):
            # Initialisers refer to single fields of a structure, other functions to its start.
            distance, users = self._nearest_users(address) or (0, users)
        where = f"at +{distance} of one used in" if distance else "used in"
        return f"variable at {address:#x}" + (f" ({where} {some(users)})" if users else "")

    def users_of(self, address: int) -> Sequence[str]:
        """Return functions that use a variable, or a variable that refers to it."""
        self.find_users_of([address])
        own = self._users.get(address, [])
        if own and not own[0].endswith(_INITIALISER):
            return own
        # The compiler creates a variable for X of `var cache = &X{}`, which initialisers set. The
        # functions that use it read the address of X from another variable.
        for base in _bases(address):
            owners = self._owners_of(base) if base == address or self._users.get(base) == own != [] else ()
            users = next(filter(None, map(self._users.get, owners)), None)
            if users is not None:
                return users
        return own

    def _nearest_users(self, address: int) -> Optional[tuple[int, Sequence[str]]]:
        """Find the nearest address before this one to which code or a variable refers. Return the
        distance from it in bytes, and the functions that use it; None if it is not found, or if
        only initialisers use it."""
        for base in _bases(address):
            users = next(filter(None, map(self._users.get, (base, *self._owners_of(base)))), None)
            if users and not users[0].endswith(_INITIALISER):
                return address - base, users
        return None

    def owner(self, address: int) -> str:
        """Return the symbol of a variable that refers to the one at this address, or ""."""
        return next(filter(None, map(self.symbol, self._owners_of(address))), "")

    def symbol(self, address: int) -> str:
        """Return the variable that contains an address ("main.state+8"), or ""."""
        symbol = self._target.symbolize(address)
        if symbol is None or symbol.name in _SECTIONS or not symbol.address <= address < symbol.address + max(symbol.size, 1):
            return ""
        offset = address - symbol.address
        return f"{symbol.name}{f'+{offset}' if offset else ''}"

    def _owners_of(self, address: int) -> Sequence[int]:
        """Return the words of variables that refer to an address."""
        if self._owners is None:
            self._owners = {}
            for place, value in self._words:
                self._owners.setdefault(value, []).append(place)
        return self._owners.get(address, ())
