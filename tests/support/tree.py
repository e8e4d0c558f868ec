"""Check the rules for files of the repository (`make lint`): python3 tests/support/tree.py [ROOT]

- Files are short.

- common/ imports no debugger module.

- Only a few files write to the user, because text from a target must be escaped in one place.

- There are no packages under tests/, and no conftest.py in the root: pytest would put the parent of their folder on sys.path, where gdb/
and lldb/ would shadow the debuggers' modules.
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
AS_THEY_ARE = {"LICENSE", "docs/python-results.md", "common/completions/_findleaks", "common/completions/findleaks"}
"""Files that may be longer; all but the first are generated."""
WRITERS = {
    "common/cli.py",
    "common/launcher.py",
    "common/setup_commands.py",
    "common/bootstrap.py",
    "common/injection/stub/watchdog.py",
    "common/gdb_subprocess.py",
    "common/injection/clone_holder.py",
    "gdb/findleaks_gdb.py",
    "gdb/register.py",
    "lldb/findleaks_lldb.py",
    "lldb/register.py",
}
"""Files that may write to the user. All other files pass their text to `commands.emit`, or raise a FindleaksError."""

PROSE = ("common/", "gdb/", "lldb/", "setup.py")
"""Folders and files whose comments and docstrings are limited to LONGEST_PROSE columns: all files of the product."""

LONGEST_PROSE = 100
"""Maximum columns of comments and docstrings."""


def files(root: Path) -> list[str]:
    """Return the paths of all files below `root` that git tracks, or that are new and not ignored.
    In an unpacked source archive, return the files that its SOURCES.txt lists."""
    if (root / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=root, check=True, stdout=subprocess.PIPE).stdout
    else:
        listed = (root / "findleaks.egg-info" / "SOURCES.txt").read_bytes().replace(b"\n", b"\0")
    return [name for name in os.fsdecode(listed).split("\0") if name and (root / name).is_file()]


def problems(root: Path, names: list[str]) -> Iterator[str]:
    """Return a line for each violation of a rule."""
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
        if path.suffix == ".md":
            yield from skipped_levels(path, name)
        source = Source(path, name)
        if name.startswith("common/") and path.suffix == ".py":
            yield from debuggers(source)
            yield from entries(source)
        if re.match(r"(common|gdb|lldb)/.*\.py$", name):
            yield from layers.upward(source)
            yield from participles(source)
        if re.match(r"(common|gdb|lldb)/.*\.py$", name) and name not in WRITERS:
            yield from writers(source)
        if name.startswith(PROSE) and path.suffix in (".py", ".c", ".h"):
            yield from long_prose(source)


def skipped_levels(path: Path, name: str) -> Iterator[str]:
    """Find headings two levels below the heading before them, which `make site` refuses."""
    level, is_code = 0, False
    for number, line in enumerate(path.read_text().split("\n"), 1):
        is_code ^= line.startswith("```")
        marks = len(line) - len(line.lstrip("#"))
        if marks and not is_code and line[marks : marks + 1] == " ":
            if marks > level + 1:
                yield f"{name}:{number}: a heading of level {marks} after one of level {level}"
            level = marks


def writers(source: Source) -> Iterator[str]:
    """Find calls that write to the user's terminal."""
    for node in source.nodes:
        if isinstance(node, ast.Call) and _last(node.func) in _WRITING and _WRITES.fullmatch(ast.unparse(node.func)):
            by = ast.unparse(node.func)
            yield f"{source.name}:{node.lineno}: writes by {by}: text goes through commands.emit, which makes it visible"


def _last(called: ast.expr) -> str:
    """ "write" of sys.stdout.write"""
    return called.attr if isinstance(called, ast.Attribute) else called.id if isinstance(called, ast.Name) else ""


_WRITING = {"print", "write", "writelines", "PutCString", "AppendMessage", "Print"}
_WRITES = re.compile(r"print|sys\.(std|__std)\w+\.(write|writelines)|gdb\.write|\w*result\w*\.(PutCString|AppendMessage|Print)|os\.write")


def long_prose(source: Source) -> Iterator[str]:
    """Find lines of comments and docstrings that are longer than LONGEST_PROSE columns."""
    lines = source.text.split("\n")
    for first, last in c_comments(source.text) if source.name.endswith((".c", ".h")) else python_prose(source):
        for at in range(first, last + 1):
            if len(lines[at - 1]) > LONGEST_PROSE:
                yield f"{source.name}:{at}: prose of {len(lines[at - 1])} columns (the limit is {LONGEST_PROSE})"


def python_prose(source: Source) -> Iterator[tuple[int, int]]:
    """Yield the first and last line of each comment and docstring of a Python file."""
    for token in tokenize.generate_tokens(io.StringIO(source.text).readline):
        if token.type == tokenize.COMMENT and not token.string.startswith(("# type:", "# noqa")):
            yield token.start[0], token.start[0]
    for node in source.nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.end_lineno or node.lineno


def c_comments(text: str) -> Iterator[tuple[int, int]]:
    """Yield the first and last line of each comment of a C file."""
    for comment in re.finditer(r"/\*.*?\*/", text, re.S):
        first = text.count("\n", 0, comment.start()) + 1
        yield first, first + comment[0].count("\n")


def participles(source: Source) -> Iterator[str]:
    """Find functions whose name is only a past participle, such as `counted`. Properties are attributes, and may have such names."""
    for node in source.nodes:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            name = node.name.strip("_")
            is_participle = name in _IRREGULAR or ("_" not in name and name.endswith("ed") and name not in _VERBS)
            if is_participle and name not in _ALLOWED and not any("property" in ast.unparse(one) for one in node.decorator_list):
                yield f"{source.name}:{node.lineno}: {node.name} is a past participle: name the function by what it does"


_IRREGULAR = {
    *("begun", "broken", "built", "chosen", "done", "drawn", "found", "frozen", "given", "gone", "got", "held", "hidden", "kept", "known"),
    *("lost", "made", "said", "seen", "sent", "shown", "spent", "stolen", "taken", "thrown", "told", "unknown", "unseen", "written"),
}
_VERBS = {"embed", "exceed", "feed", "need", "proceed", "seed", "speed", "heed"}
_ALLOWED = {"untyped"}  # part of the Python API


def debuggers(source: Source) -> Iterator[str]:
    """Find imports of gdb, lldb or findleaks' front ends, anywhere in the file."""
    for line, module, names in source.imports:
        for one in (module, *(f"{module}.{taken}" for taken in names)):
            if re.match(r"(findleaks\.)?(gdb|lldb)(\.|$)", one):
                yield f"{source.name}:{line}: imports {one}: common/ must work in every front end"


def entries(source: Source) -> Iterator[str]:
    """Find strings that name code of the front ends, which common/ cannot import. Each must be "findleaks.gdb.MODULE:FUNCTION" and
    exist."""
    for node in source.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"findleaks\.(gdb|lldb)\.\w", node.value):
            if len(node.value.split()) > 1 and "import" not in node.value:
                continue  # a sentence
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
