"""The tree's own rules, checked by `make lint`: python3 tests/support/tree.py [ROOT]

Files stay short; common/ imports no debugger; few files write to the user, for what a target says must leave by one door; no package under
tests/ and no conftest.py at the root, for pytest would put their folder's parent on sys.path, where gdb/ and lldb/ would shadow the
debuggers' modules.
"""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import layers
from sources import Source

LONGEST = 420
TEXTS = {".py", ".c", ".h", ".cpp", ".sh", ".md", ".toml", ""}
AS_THEY_ARE = {"LICENSE", "docs/python-results.md"}
"""Files of any length; the second is generated."""
WRITERS = {
    "common/cli.py",
    "common/launcher.py",
    "common/bootstrap.py",
    "common/injection/stub/watchdog.py",
    "common/gdb_subprocess.py",
    "common/injection/clone_holder.py",
    "gdb/findleaks_gdb.py",
    "gdb/register.py",
    "lldb/findleaks_lldb.py",
    "lldb/register.py",
}
"""Files that may write to the user: everything else gives its text to `commands.emit`, or raises a FindleaksError."""

PLAIN_WORDS = {
    "told": "reported, identified, distinguished",
    "tell": "report, identify, distinguish",
    "tells": "reports, identifies",
    "telling": "reporting, identifying",
    "stand": "be, represent",
    "stands": "is, represents",
    "strange": "unknown, ignored",
    "nobody": "none, unowned",
    "of ours": "findleaks'",
    "of our own": "explicit, findleaks'",
    "as far as": "if, where",
    "knot": "join node",
    "knots": "join nodes",
    "bush": "collapsed tree",
    "bushes": "collapsed trees",
    "silent": "ignored",
    "tier": "priority",
    "tiers": "priorities",
    "keeper": "owner",
    "keepers": "owners",
    "memo": "cache",
    "room": "space, capacity",
    "roomy": "large",
}
"""Words that say too little where the field has a term, and what to say instead."""

PLAIN_ROOMS = ("common/", "gdb/", "lldb/", "setup.py")
"""Folders and files without any of PLAIN_WORDS: the whole product."""

GIVEN_NAMES = {
    ("common/debuginfo/sections.py", "tell"),  # a file's method
    ("common/runtimes/ruby/census.py", "memo"),  # Ruby's imemo
    ("gdb/counting.py", "silent"),  # gdb.Breakpoint.silent
}
"""(file, word): names that others gave."""

LONGEST_PROSE = 100
"""Columns of comments and docstrings in PLAIN_ROOMS."""


def files(root: Path) -> list[str]:
    """What git tracks, and what it would if it were added; as paths below `root`."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE).stdout
    return [name for name in os.fsdecode(listed).split("\0") if name and (root / name).is_file()]


def problems(root: Path, names: list[str]) -> Iterator[str]:
    """A line each for what breaks a rule."""
    for name in names:
        path = root / name
        if path.suffix in TEXTS and name not in AS_THEY_ARE:
            lines = path.read_bytes().count(b"\n")
            if lines > LONGEST:
                yield f"{name}: {lines} lines: split it by subject (the limit is {LONGEST})"
        if name.startswith("tests/") and path.name == "__init__.py":
            yield f"{name}: tests/ must hold no packages"
        if name == "conftest.py":
            yield f"{name}: belongs in tests/"
        source = Source(path, name)
        if name.startswith("common/") and path.suffix == ".py":
            yield from debuggers(source)
            yield from entries(source)
        if re.match(r"(common|gdb|lldb)/.*\.py$", name):
            yield from layers.upward(source)
        if re.match(r"(common|gdb|lldb)/.*\.py$", name) and name not in WRITERS:
            yield from writers(source)
        if name.startswith(PLAIN_ROOMS) and path.suffix in (".py", ".c", ".h"):
            yield from words_to_avoid(source)


def writers(source: Source) -> Iterator[str]:
    """Calls that write to the user's terminal."""
    for node in source.nodes:
        if isinstance(node, ast.Call) and _last(node.func) in _WRITING and _WRITES.fullmatch(ast.unparse(node.func)):
            by = ast.unparse(node.func)
            yield f"{source.name}:{node.lineno}: writes by {by}: text goes through commands.emit, which makes it visible"


def _last(called: ast.expr) -> str:
    """ "write" of sys.stdout.write"""
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


_WRITING = {"print", "write", "writelines", "PutCString", "AppendMessage", "Print"}
_WRITES = re.compile(r"print|sys\.(std|__std)\w+\.(write|writelines)|gdb\.write|\w*result\w*\.(PutCString|AppendMessage|Print)|os\.write")


def words_to_avoid(source: Source) -> Iterator[str]:
    """PLAIN_WORDS in the names that a file defines, its comments, docstrings and strings; prose beyond LONGEST_PROSE columns."""
    name, lines = source.name, source.text.split("\n")
    for line, said, prose in c_words(source.text) if name.endswith((".c", ".h")) else python_words(source):
        for word in _AVOIDED.findall(_separated(said)):
            if (name, word) in GIVEN_NAMES:
                continue
            yield f"{name}:{line}: {word!r}: say {PLAIN_WORDS[word]}"
        for at in range(line, line + said.count("\n") + 1) if prose else ():
            if len(lines[at - 1]) > LONGEST_PROSE:
                yield f"{name}:{at}: prose of {len(lines[at - 1])} columns (the limit is {LONGEST_PROSE})"


def python_words(source: Source) -> Iterator[tuple[int, str, bool]]:
    """(line, text, whether it is prose) of the comments, strings and defined names of a Python file."""
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(("# type:", "# noqa")):
            yield token.start[0], token.string, True
    for node in source.nodes:
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield line, "\n" * ((node.end_lineno or line) - line), True
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield line, node.value.replace("\n", " "), False
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield line, node.name, False
        elif isinstance(node, ast.arg):
            yield line, node.arg, False
        elif isinstance(node, ast.alias) and node.asname:
            yield line, node.asname, False
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield line, node.id, False
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield line, node.attr, False


def c_words(text: str) -> Iterator[tuple[int, str, bool]]:
    """(line, text, whether it is prose) of the comments and of the other text of a C file."""
    end = 0
    for comment in re.finditer(r"/\*.*?\*/", text, re.S):
        yield from (
            (text.count("\n", 0, at.start()) + 1, at[0], False) for at in re.compile(r"[^\n]+").finditer(text, end, comment.start())
        )
        yield text.count("\n", 0, comment.start()) + 1, re.sub(r"\n *\*(?= )", "\n", comment[0]), True
        end = comment.end()
    yield from ((text.count("\n", 0, at.start()) + 1, at[0], False) for at in re.compile(r"[^\n]+").finditer(text, end))


def _separated(said: str) -> str:
    """Text in lower case with names split at _ and camel case, and single spaces."""
    return " ".join(re.sub(r"_|(?<=[a-z0-9])(?=[A-Z])", " ", said).lower().split())


_AVOIDED = re.compile(rf"\b(?:{'|'.join(PLAIN_WORDS)})\b")


def debuggers(source: Source) -> Iterator[str]:
    """Imports of gdb or lldb, or of our front ends, anywhere in the file."""
    for line, module, names in source.imports:
        for one in (module, *(f"{module}.{taken}" for taken in names)):
            if re.match(r"(findleaks\.)?(gdb|lldb)(\.|$)", one):
                yield f"{source.name}:{line}: imports {one}: common/ must work in every front end"


def entries(source: Source) -> Iterator[str]:
    """Strings that name code of our front ends, which common/ cannot import: each is a "findleaks.gdb.MODULE:FUNCTION" that is there."""
    for node in source.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"findleaks\.(gdb|lldb)\.\w", node.value):
            if len(node.value.split()) > 1 and "import" not in node.value:
                continue  # prose
            match = re.fullmatch(r"findleaks\.(gdb|lldb)\.(\w+):(\w+)", node.value)
            file = source.root / match[1] / f"{match[2]}.py" if match else None
            if match is None or file is None or not file.is_file() or f"\ndef {match[3]}(" not in file.read_text(encoding="utf-8"):
                yield f"{source.name}:{node.lineno}: {node.value!r} names no function of a front end: write findleaks.gdb.MODULE:FUNCTION"


def main() -> int:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[2])
    found = list(problems(root, files(root)))
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
