"""Names, summaries and examples of the commands.

Debuggers register commands from these. Importing the commands takes about 60 ms, which would delay
each debugger that loads findleaks from ~/.gdbinit."""

from __future__ import annotations

from collections.abc import Iterable

from findleaks.value_classes import NamedTuple


class Entry(NamedTuple):
    """A command in the catalogue.

    `example`: the words after the program's name, such as "find --by type". `shell`: it exists on
    the command line only; debuggers refuse it, and show the words for a shell. `live`: it needs a
    running process, and takes no core."""

    word: str
    summary: str
    example: str
    shell: bool = False
    live: bool = False

    @property
    def target(self) -> str:
        """Words that name the process in an example on the command line."""
        return "--pid 4711" if self.live else "core"

    def help(self, prog: str) -> str:
        """Return the text for the debugger's `help`. Its first line is shown in lists of
        commands."""
        first = self.summary[0].upper() + self.summary[1:]
        where = " It runs in a shell." if self.shell else ""
        prog = "findleaks" if self.shell else prog
        return f"{first}.{where}\n\nExample:\n  {prog} {self.example}\n\n`{prog} {self.word} --help` lists the options."


_ENTRIES = (
    Entry("verdict", "shares of the resident memory, problems, and remedies", "verdict --json"),
    Entry("find", "leaked blocks, grouped by kind, type and size", "find --kind definite --limit 5"),
    Entry("blocks", "single blocks, filtered by kind, state, size and type", "blocks --kind definite --size 16-64"),
    Entry("caches", "size classes of each allocator: bytes in use, cached and free", "caches --sort memory --limit 10"),
    Entry("map", "a picture of every heap by page: in use, free, returned; as HTML, SVG or PNG", "map -o map.html"),
    Entry("verify", "heap corruption: the first damaged address, the blocks around it, the bytes written", "verify --limit 3"),
    Entry("whatis", "what an address belongs to: a block with its state and kind, a stack, a variable, …", "whatis 0x55d0c0a012a0"),
    Entry("refs", "references to an address: in blocks, roots, registers and dead memory", "refs 0x55d0c0a012a0"),
    Entry("path", "the shortest path of references from a root to a block", "path 0x55d0c0a012a0"),
    Entry("roots", "what retains the memory: variables, stacks and mappings, with fields and containers", "roots g_agent --depth 3"),
    Entry("stacks", "threads grouped by identical stacks, filtered by function or module", "stacks -c uv_run --not-under uv_cond_wait"),
    Entry("runtime", "objects of a managed runtime (CPython, Ruby, …) by type, with native memory that they retain", "runtime --limit 10"),
    Entry("scopes", "handle scopes of V8: handles, their objects, and the frame that opened each scope", "scopes --limit 5"),
    Entry("snapshot", "save the results of the commands, to compare them later", "snapshot before"),
    Entry("diff", "growth between snapshots, cores or stops of a debugger, and whether it continues", "diff before"),
    Entry("watch", "growth in a running process, in a table that is redrawn in place", "watch --every 10", live=True),
    Entry(
        "count",
        "calls of a function in a running process, by call stack; or only those outside a scope",
        "count malloc --for 10",
        live=True,
    ),
    Entry(
        "track", "allocations in a running process, by call stack, and whether the blocks were freed", "track --size 48 --for 10", live=True
    ),
    Entry(
        "triage",
        "many cores in one table, with equal leaks in one group; as SQLite, Parquet or HTML",
        "triage /var/crash -o crashes.sqlite",
        shell=True,
    ),
)

CATALOGUE = {entry.word: entry for entry in _ENTRIES}
"""Entries by command word, in the order of the help.
A new entry needs a file commands/WORD.py with a function of that name."""


def suggest_word(word: str, words: Iterable[str]) -> str:
    """Return the most similar of `words`, such as ": did you mean 'find'?"; "" if none is
    similar."""
    from difflib import get_close_matches  # not needed for loading into a debugger

    near = get_close_matches(word, list(words), 1)
    return f": did you mean {near[0]!r}?" if near else ""
