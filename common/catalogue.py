"""Names, summaries and examples of the commands.

Debuggers register commands from this module. Importing the commands themselves takes about 60 ms,
which would delay each debugger that loads findleaks from ~/.gdbinit."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from findleaks.value_classes import NamedTuple


class Opens(Enum):
    """What a command reads, and how the command line opens it. In a debugger, commands with CORES
    read files, and all others read the selected process."""

    TARGET = "a core; or a live process, which is stopped, copied and resumed"
    RUNNING = "a live process, which keeps running while it is read"
    DEBUGGED = "a live process, in a GDB that is started for it"
    REPEATED = "a live process, which is copied at intervals"
    SAMPLES = "snapshots, cores and directories of them; and a live process as the last one"
    CORES = "any number of cores and directories of them, and no process"


class Entry(NamedTuple):
    """A command in the catalogue.

    `example`: words that follow the program's name: "find --by type". `rereads`: whether the
    command reads a live process again if the debugger does not report changes that the user makes
    to memory. `completes`: what Tab completes after the command: a "file", a "variable" or a
    "symbol". `failed`: what exit status 1 means."""

    word: str
    summary: str
    example: str
    opens: Opens = Opens.TARGET
    rereads: bool = False
    completes: str = "file"
    failed: str = "more has leaked than --fail-over allows"

    @property
    def live(self) -> bool:
        """Whether the command needs a running process and accepts no core."""
        return self.opens in (Opens.RUNNING, Opens.DEBUGGED, Opens.REPEATED)

    @property
    def shell(self) -> bool:
        """Whether the command reads files and no process. Only the command line has it."""
        return self.opens is Opens.CORES

    @property
    def only_in_shell(self) -> bool:
        """Whether debuggers do not run the command, and print what to type in a shell."""
        return self.shell or self.opens is Opens.REPEATED

    @property
    def target(self) -> str:
        """The words that name the process in an example on the command line."""
        return "--pid 4711" if self.live else "core"

    @property
    def shell_example(self) -> str:
        """The example as it is typed in a shell."""
        return f"findleaks {self.example}" + ("" if self.shell else f" {self.target}")

    @property
    def title(self) -> str:
        """The line in a debugger's list of commands."""
        where = " It runs in a shell." if self.only_in_shell else ""
        return f"{self.summary[0].upper()}{self.summary[1:]}.{where}"

    def help(self, prog: str) -> str:
        """Return the text for the debugger's `help`. Its first line is the title."""
        example = self.shell_example if self.only_in_shell else f"{prog} {self.example}"
        return f"{self.title}\n\nExample:\n  {example}\n\n`{prog} {self.word} --help` lists the options."


_ENTRIES = (
    Entry("verdict", "account for all resident memory, list problems by size, and suggest remedies", "verdict --json"),
    Entry("find", "list leaked blocks, grouped by kind, type and size", "find --kind definite --limit 5", rereads=True),
    Entry("blocks", "list single blocks, filtered by kind, state, size or type", "blocks --kind definite --size 16-64"),
    Entry("caches", "list the size classes of each allocator: in use, cached, free, memory", "caches --sort memory --limit 10"),
    Entry("map", "draw the heaps page by page: in use, not returned, returned; as text, HTML, SVG, PNG", "map -o map.html"),
    Entry(
        "verify",
        "check the heaps for corruption: the first wrong byte, what was written, blocks around",
        "verify --limit 3",
        failed="the heap is corrupt",
    ),
    Entry(
        "whatis",
        "describe what is at an address: a block with its state and kind, a stack, a variable",
        "whatis 0x55d0c0a012a0",
        completes="variable",
    ),
    Entry(
        "refs",
        "list all references to an address: in blocks, roots, registers and dead memory",
        "refs 0x55d0c0a012a0",
        completes="variable",
    ),
    Entry("path", "show the shortest chain of references from a root to a block", "path 0x55d0c0a012a0", completes="variable"),
    Entry(
        "roots",
        "list what variables, stacks and mappings retain, with their fields and containers",
        "roots g_agent --depth 3",
        completes="symbol",
    ),
    Entry(
        "stacks",
        "list the threads, grouped by identical call stacks",
        "stacks -c uv_run --not-under uv_cond_wait",
        completes="symbol",
    ),
    Entry("runtime", "list the objects of managed runtimes (CPython, Ruby, …) by type, with native bytes", "runtime --limit 10"),
    Entry("scopes", "list V8's handle scopes: their handles, what the handles refer to, who opened each scope", "scopes --limit 5"),
    Entry("snapshot", "save the current figures for `diff`, or write a core", "snapshot before"),
    Entry(
        "diff",
        "list what grew between snapshots, cores or stops of a debugger, and whether it continues",
        "diff before",
        opens=Opens.SAMPLES,
    ),
    Entry(
        "watch", "show what grows in a running process, in a table that is updated at intervals", "watch --every 10", opens=Opens.REPEATED
    ),
    Entry(
        "count",
        "count the calls of a function in a running process, by call stack",
        "count malloc --for 10",
        opens=Opens.DEBUGGED,
        completes="symbol",
    ),
    Entry(
        "track",
        "record the allocations of a running process by call stack, and what became of them",
        "track --size 48 --for 10",
        opens=Opens.RUNNING,
    ),
    Entry(
        "triage",
        "read many cores, and group equal leaks; as text, SQLite, Parquet or HTML",
        "triage /var/crash -o crashes.sqlite",
        opens=Opens.CORES,
    ),
)

CATALOGUE = {entry.word: entry for entry in _ENTRIES}
"""Entries by command word, in the order of the help.
A new entry needs a file commands/WORD.py with a function of that name."""

FRONT = {"gdb": "start GDB with findleaks loaded", "lldb": "start LLDB with findleaks loaded"}
"""Summaries of the commands that start a debugger. Only the command line has them."""
SETUP = {
    "init": "load findleaks from ~/.gdbinit and ~/.lldbinit",
    "doctor": "check what this machine allows: debuggers, live processes, core dumps",
    "completion": "print the completion script of bash, zsh or fish",
}
"""Summaries of the commands that prepare the machine. Only the command line has them."""


def suggest_word(word: str, words: Iterable[str]) -> str:
    """Return the most similar of `words` in a phrase such as ": did you mean 'find'?"; "" if none
    is similar."""
    # Loading findleaks into a debugger does not need this, so it is imported here.
    from difflib import get_close_matches

    by_letters = {one.lstrip("-"): one for one in words}  # all options begin with dashes
    near = get_close_matches(word.lstrip("-"), list(by_letters), 1)
    return f": did you mean {by_letters[near[0]]!r}?" if near else ""
