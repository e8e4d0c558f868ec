"""The commands' names, summaries and examples. Debuggers register commands from these: importing
the commands takes some 60 ms, a delay for each debugger that loads findleaks from ~/.gdbinit."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from findleaks.value_classes import NamedTuple


class Opens(Enum):
    """What a command reads, and how the command line opens it. In a debugger, each command but
    those of CORES reads the selected process."""

    MOMENT = "a core; or a live process, which is stopped, copied and resumed"
    RUNNING = "a live process, which runs on while it is read"
    DEBUGGED = "a live process, in a GDB that is started for it"
    REPEATED = "a live process, which is copied at intervals"
    MOMENTS = "snapshots, cores and folders of them; and a live process as the last one"
    CORES = "any number of cores and folders of them, and no process"


class Entry(NamedTuple):
    """A command in the catalogue. `example` goes after the program's name: "find --by type".
    `rereads`: in a debugger that does not report what the user changes, it reads the process again.
    `completes`: what follows the word: a "file", a "variable", a "symbol". `failed`: what
    exit status 1 means."""

    word: str
    summary: str
    example: str
    opens: Opens = Opens.MOMENT
    rereads: bool = False
    completes: str = "file"
    failed: str = "more is lost than --fail-over allows"

    @property
    def live(self) -> bool:
        """Whether it needs a running process, and takes no core."""
        return self.opens in (Opens.RUNNING, Opens.DEBUGGED, Opens.REPEATED)

    @property
    def shell(self) -> bool:
        """Whether it is one of the command line only. Debuggers print what to type there."""
        return self.opens is Opens.CORES

    @property
    def target(self) -> str:
        """What names the process in an example on the command line."""
        return "--pid 4711" if self.live else "core"

    def help(self, prog: str) -> str:
        """Help for the debugger's own `help`; its first line is shown in lists of commands."""
        first = self.summary[0].upper() + self.summary[1:]
        where = " It runs in a shell." if self.shell else ""
        prog = "findleaks" if self.shell else prog
        return f"{first}.{where}\n\nExample:\n  {prog} {self.example}\n\n`{prog} {self.word} --help` lists the options."


_ENTRIES = (
    Entry("verdict", "where the resident memory is, what is wrong with it, and what to try", "verdict --json"),
    Entry("find", "what leaked, grouped by kind, type and size", "find --kind definite --limit 5", rereads=True),
    Entry("blocks", "the blocks themselves, filtered by kind, state, size, type", "blocks --kind definite --size 16-64"),
    Entry("caches", "each size class of each allocator: in use, cached, free, memory (::umastat)", "caches --sort memory --limit 10"),
    Entry("map", "a picture of every heap, page by page: in use, kept, returned; to HTML, SVG, PNG", "map -o map.html"),
    Entry(
        "verify",
        "heap corruption: the first bad address, the blocks around it, what was written",
        "verify --limit 3",
        failed="the heap is corrupt",
    ),
    Entry(
        "whatis",
        "what an address is: a block with its state and kind, a stack, a variable, …",
        "whatis 0x55d0c0a012a0",
        completes="variable",
    ),
    Entry("refs", "who points here: every word in blocks, roots, registers and dead memory", "refs 0x55d0c0a012a0", completes="variable"),
    Entry("path", "the shortest chain from a root to a block: who holds it", "path 0x55d0c0a012a0", completes="variable"),
    Entry(
        "roots",
        "who holds the memory: variables, stacks and mappings with their fields and containers",
        "roots g_agent --depth 3",
        completes="symbol",
    ),
    Entry(
        "stacks",
        "threads grouped by identical stacks, filtered by function or module",
        "stacks -c uv_run --not-under uv_cond_wait",
        completes="symbol",
    ),
    Entry("runtime", "what a managed runtime (CPython, Ruby, …) holds and knows of: objects by type, native bytes", "runtime --limit 10"),
    Entry("scopes", "V8's handle scopes: handles, what they hold, which frame opened each scope", "scopes --limit 5"),
    Entry("snapshot", "keep what the commands say of this moment, to compare it later", "snapshot before"),
    Entry("diff", "what grew between snapshots, cores, or stops of a debugger, and whether it goes on", "diff before", opens=Opens.MOMENTS),
    Entry("watch", "what grows in a running process, as it grows; a table redrawn in place", "watch --every 10", opens=Opens.REPEATED),
    Entry(
        "count",
        "a function's calls as they happen, by stacks; only those outside a scope",
        "count malloc --for 10",
        opens=Opens.DEBUGGED,
        completes="symbol",
    ),
    Entry(
        "track", "who allocates, as it happens: stacks of blocks, and what became of them", "track --size 48 --for 10", opens=Opens.RUNNING
    ),
    Entry(
        "triage",
        "many cores in one table, where the same leak is one group; to SQLite, Parquet, HTML",
        "triage /var/crash -o crashes.sqlite",
        opens=Opens.CORES,
    ),
)

CATALOGUE = {entry.word: entry for entry in _ENTRIES}
"""By word, in the help's order. A new entry needs commands/WORD.py with a function of that name."""


def meant(word: str, words: Iterable[str]) -> str:
    """For example ": did you mean 'find'?"; "" if none of `words` is similar."""
    from difflib import get_close_matches  # not needed for loading into a debugger

    near = get_close_matches(word, list(words), 1)
    return f": did you mean {near[0]!r}?" if near else ""
