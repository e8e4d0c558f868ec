"""`leaks …` in LLDB: registers a command for each word."""

from __future__ import annotations

import io
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Optional, TextIO, cast

import lldb
from findleaks.catalogue import CATALOGUE
from findleaks.debugger_session import DebuggerSession, Subject, add_find_word, describe_failure
from findleaks.errors import FindleaksError
from findleaks.lldb.completion import complete_word, completes_words
from findleaks.report.columns import LEAST, terminal_columns
from findleaks.report.encoding import substitute_text, terminal_charset

if TYPE_CHECKING:
    from findleaks.lldb.interrupt import Interrupts

SUMMARY = "Find memory leaks in this process or core. Example: leaks find --kind definite"
HERE = "findleaks.lldb.register"  # The name under which LLDB imports this module.
STATE = "findleaks_front"  # The key in LLDB's dictionary for the commands of each debugger.
_PIECE = 1 << 16  # Output is passed to LLDB in pieces of this many characters.
LONGEST_WORD = 1 << 20  # maximum number of characters of a word on the command line

COMPLETION = {"file": "disk-file", "variable": "variable-path", "symbol": "symbol"}
"""LLDB's words for what Tab completes after a command word (Entry.completes), for versions that do
not ask the command itself (see CompletedWord)."""
ARGUMENT = {"file": "eArgTypeFilename", "variable": "eArgTypeVarName", "symbol": "eArgTypeSymbol"}
"""The same for a command that LLDB asks, as names of lldb.CommandArgumentType."""


class Output(io.TextIOBase):
    """A stream that writes to the result of a command, in pieces of more than `piece`
    characters."""

    def __init__(self, result: Any, piece: int = _PIECE) -> None:
        self._result = result
        self._piece = piece
        self._parts: list[str] = []
        self._size = 0
        self._charset = terminal_charset()

    def write(self, text: str) -> int:
        self._parts.append(text)
        self._size += len(text)
        if self._size > self._piece:
            self.flush()
        return len(text)

    def flush(self) -> None:
        if self._parts:
            self._result.PutCString(substitute_text("".join(self._parts), self._charset).replace("\0", "\\0"))
            self._parts, self._size = [], 0


class Lldb:
    """The interface of LLDB that commands use. `context`: the execution context of the running
    command."""

    def __init__(self, debugger: Any) -> None:
        self.debugger = debugger
        self.context: Any = None
        self.interrupts: Optional[Interrupts] = None

    def subject(self) -> Subject:
        from findleaks.lldb.target import subject

        return subject(self.debugger, self.context, self.interrupts)

    def evaluate(self, expression: str) -> int:
        from findleaks.lldb.target import evaluate

        return evaluate(self.context, expression)

    def asked_to_stop(self) -> bool:
        """Whether the user pressed Ctrl-C during this command."""
        requests = ((self.debugger, "InterruptRequested"), (self.debugger.GetCommandInterpreter(), "WasInterrupted"))
        return any(getattr(owner, name)() for owner, name in requests if hasattr(owner, name))


class LldbFrontEnd:
    """findleaks in one LLDB debugger. It owns all state, and is created with the first command."""

    def __init__(self, debugger: Any) -> None:
        from findleaks.lldb.interrupt import Interrupts

        self._lldb = Lldb(debugger)
        self._front = DebuggerSession(self._lldb)
        self._interrupts = self._lldb.interrupts = Interrupts(self._lldb.asked_to_stop)

    def run(self, words: Sequence[str], prog: str, context: Any, result: Any) -> None:
        """Run a command line. Any error becomes the result's error of one line."""
        self._lldb.context = context
        out = Output(result, self._at_once(words, result))
        width = self._width()
        try:
            with self._interrupts.raise_interrupts():
                status = self._front.run(words, cast(TextIO, out), width, prog)
            out.flush()
            if status:
                result.SetError(describe_failure(prog, words[0], status))
        except KeyboardInterrupt:
            self._front.drop()
            result.SetError(f"{prog}: interrupted")
        except FindleaksError as error:
            out.flush()
            text = str(error)
            result.SetError(text if text.startswith(prog) else f"{prog}: {text}")
        finally:
            self._lldb.context = None

    def kept_names(self) -> list[str]:
        """The names of snapshots taken in this LLDB."""
        return self._front.kept_names()

    def _width(self) -> int:
        """Columns of text: LLDB's setting; 80 if there is no terminal and nothing was set."""
        wanted = self._lldb.debugger.GetTerminalWidth() or 0
        return terminal_columns(str(wanted) if wanted != LEAST else "")

    def _at_once(self, words: Sequence[str], result: Any) -> int:
        """The number of characters to collect before they are passed to LLDB; none for tables that
        grow (--every)."""
        if not any(word.startswith(("--every", "-every")) for word in words):
            return _PIECE
        result.SetImmediateOutputFile(self._lldb.debugger.GetOutputFile())
        return 0


class Word:
    """An LLDB command. The subclasses made by `__getattr__` set `prog` and `word` ("" for `leaks`
    or `findleaks` itself)."""

    prog = "leaks"
    word = ""

    def __init__(self, debugger: Any, internal_dict: dict[str, Any]) -> None:
        front_end = internal_dict.get(STATE)
        if front_end is None:
            front_end = internal_dict[STATE] = LldbFrontEnd(debugger)
        self._front_end: LldbFrontEnd = front_end

    def __call__(self, debugger: Any, command: str, context: Any, result: Any) -> None:
        """Run the command. LLDB calls this, and would treat an exception as success."""
        try:
            words = shlex.split(command)
        except ValueError as error:
            result.SetError(f"{self.prog}: {str(error).lower()} in: {command}")
            return
        self._run(words, context, result)

    def _run(self, words: Sequence[str], context: Any, result: Any) -> None:
        if self.word:
            words = [self.word, *words]
        elif self.prog == "findleaks":
            words = add_find_word(words)
        self._front_end.run(words, self.prog, context, result)

    def get_short_help(self) -> str:
        """The line in LLDB's lists of commands."""
        entry = CATALOGUE.get(self.word)
        if entry is not None:
            return entry.title
        return SUMMARY if self.prog == "leaks" else "Another name of `leaks`. Without a command, it runs `leaks find`."

    def get_long_help(self) -> str:
        """The text of `help leaks WORD`."""
        entry = CATALOGUE.get(self.word)
        if entry is not None:
            return entry.help(self.prog)
        lines = [f"  {self.prog} {known.word:8} {known.summary}" for known in CATALOGUE.values()]
        example = f"Example:\n  {self.prog} find --kind definite"
        return "\n".join([self.get_short_help(), "", *lines, "", example, "", f"`{self.prog} COMMAND --help` describes a command."])


class CompletedWord(Word):
    """A command that completes its own words. LLDB splits the command line, and passes all words
    as arguments, because the command declares no options to LLDB."""

    def get_options_definition(self) -> dict[str, Any]:
        return {}

    def get_args_definition(self) -> list[list[dict[str, Any]]]:
        entry = CATALOGUE.get(self.word)
        return [[{"arg_type": getattr(lldb, ARGUMENT[entry.completes if entry is not None else "file"]), "repeat": "star"}]]

    def get_flags(self) -> int:
        return 0

    def option_parsing_started(self) -> None:
        """LLDB requires this method."""

    def __call__(self, debugger: Any, command: Any, context: Any, result: Any) -> None:
        """Run the command with these words, an SBStructuredData."""
        items = (command.GetItemAtIndex(index) for index in range(command.GetSize()))
        self._run([item.GetStringValue(LONGEST_WORD) for item in items], context, result)

    def handle_argument_completion(self, words: Sequence[str], at: int, cursor: int) -> Any:
        """Return the completions of the word at index `at`, up to `cursor`. LLDB calls this for
        Tab. Returns False if LLDB must complete what get_args_definition() declares."""
        before = [self.word, *words[:at]] if self.word else list(words[:at])
        return complete_word(before, words[at][:cursor], self._front_end.kept_names())


def __getattr__(name: str) -> type[Word]:
    """The classes of the commands, which LLDB looks up by name: leaks_find, findleaks_, …"""
    prog, separator, word = name.partition("_")
    if prog not in ("leaks", "findleaks") or not separator or (word and word not in CATALOGUE):
        raise AttributeError(name)
    base = CompletedWord if completes_words(lldb.SBDebugger.GetVersionString()) else Word
    return type(name, (base,), {"prog": prog, "word": word})


def _handle(debugger: Any, command: str) -> bool:
    result = lldb.SBCommandReturnObject()
    debugger.GetCommandInterpreter().HandleCommand(command, result)
    return bool(result.Succeeded())


def register(debugger: Any) -> None:
    """Add the commands. LLDB looks up their classes through `findleaks` in its dictionary for
    scripts."""
    for container in ("leaks", "findleaks"):  # Remove the commands of an earlier import.
        _handle(debugger, f"command container delete {container}")
        _handle(debugger, f"command script delete {container}")
    parsed = "--parsed " if completes_words(lldb.SBDebugger.GetVersionString()) else ""
    if _handle(debugger, f'command container add -h "{SUMMARY}" leaks'):
        for word, entry in CATALOGUE.items():
            add = f"-c {HERE}.leaks_{word} leaks {word}"
            if not _handle(debugger, f"command script add {parsed or f'-C {COMPLETION[entry.completes]} '}{add}"):
                _handle(debugger, f"command script add {add}")  # An older LLDB without -C.
    else:  # An older LLDB without containers: one command receives the words.
        _handle(debugger, f"command script add -c {HERE}.leaks_ leaks")
    # This is not a container, as it is also a command by itself.
    _handle(debugger, f"command script add {parsed}-c {HERE}.findleaks_ findleaks")
