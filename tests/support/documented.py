"""The commands in README and the documentation, with the output below them, and the meaning of each command line."""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PROMPT = re.compile(r"(\$|\(gdb\)|\(lldb\)) (.*)")
PLACEHOLDER = re.compile(r"…|\.\.\.|\[|\{|<|\|")
"""Characters of command lines that only show a form, and cannot be typed as they are."""


class Example(NamedTuple):
    """A command on a page. `prompt`: "$", "(gdb)" or "(lldb)"; "" for a command in a sentence."""

    page: str
    line: int
    prompt: str
    command: str
    output: tuple[str, ...]

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """Return the user documentation, as paths below the repository's root."""
    found = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "cores/README.md", ROOT / "tests/README.md"]
    return sorted(str(page.relative_to(ROOT)) for page in found)


def examples() -> list[Example]:
    """Return all commands of all pages."""
    return [example for page in pages() for example in parse(page, (ROOT / page).read_text(encoding="utf-8"))]


def parse(page: str, text: str) -> Iterator[Example]:
    """Parse the commands of a page: after a prompt in a code block, at the beginning of a line in a code block, and in sentences."""
    inside = set()
    for block in blocks(text):
        inside.update(line for line, _ in block)
        yield from _of_block(page, block)
    for number, line in enumerate(text.splitlines(), 1):
        if number not in inside:
            for command in re.findall(r"`((?:findleaks|leaks) [^`]+)`", line):
                yield Example(page, number, "", command, ())


def blocks(text: str) -> Iterator[list[tuple[int, str]]]:
    """Return the code blocks of a page, fenced or indented by four columns, as numbered lines without the indentation."""
    block: list[tuple[int, str]] = []
    fence, indented, blank = "", False, True
    for number, line in enumerate(text.splitlines(), 1):
        opened = re.match(r" *(```+)", line)
        if fence:
            if opened and line.strip() == fence:
                yield block
                block, fence = [], ""
            else:
                block.append((number, line))
        elif opened:
            if block:
                yield block
            block, indented, fence = [], False, opened[1]
        elif line.startswith("    ") and (indented or blank):
            indented = True
            block.append((number, line[4:]))
        elif indented and not line.strip():
            block.append((number, ""))
        elif indented:
            yield block
            block, indented = [], False
        blank = not line.strip()
    if block:
        yield block


def _of_block(page: str, block: list[tuple[int, str]]) -> Iterator[Example]:
    margin = min((len(line) - len(line.lstrip()) for _, line in block if line.strip()), default=0)
    block = [(number, line[margin:]) for number, line in block]
    at = 0
    while at < len(block):
        number, line = block[at]
        shown = PROMPT.match(line)
        plain = re.match(r"(findleaks|leaks) ", line) if not shown else None
        at += 1
        if not shown and not plain:
            continue
        prompt, command = (shown[1], shown[2]) if shown else ("$" if line.startswith("findleaks") else "(gdb)", line)
        while command.endswith("\\") and at < len(block):
            command = command[:-1] + block[at][1].strip()
            at += 1
        end = at
        while end < len(block) and not PROMPT.match(block[end][1]):
            end += 1
        yield Example(page, number, prompt, command.strip(), tuple(line for _, line in block[at:end]) if shown else ())
        at = end if shown else at


def calls(example: Example) -> Iterator[list[str]]:
    """Return the arguments of each findleaks command in a command line: those of `findleaks` in a shell, and of `leaks` in a debugger."""
    if not re.search(r"\b(findleaks|leaks) ", example.command) or (not example.prompt and PLACEHOLDER.search(example.command)):
        return
    if example.prompt.startswith("(") or example.command.startswith("leaks "):
        if example.command.startswith("leaks "):
            yield shlex.split(re.sub(r"\s{2,}#.*", "", example.command))[1:]
        return
    for command in _simple_commands(shell_words(example.command)):
        while command and re.match(r"[A-Z_]+=", command[0]):
            command = command[1:]
        if command[:1] == ["findleaks"]:
            yield command[1:]


def shell_words(command: str) -> list[str]:
    """Split a line of shell into words. Operators are separate words, and comments are left out."""
    made = shlex.shlex(command, posix=True, punctuation_chars="();<>|&")
    made.whitespace_split = True
    return list(made)


def _simple_commands(words: list[str]) -> Iterator[list[str]]:
    """Return the commands between the operators of a shell, without redirections."""
    command: list[str] = []
    skip = False
    for word in words:
        if word and set(word) <= set("();|&"):
            yield command
            command = []
        elif word and set(word) <= set("<>"):
            skip = True
        elif skip:
            skip = False
        else:
            command.append(word)
    yield command


SHIPPED = re.compile(r"cores/[\w.-]+\.(gz|xz)|sample\.core\.gz")
"""Names of cores that the repository contains."""
COLUMNS = "100"
"""The output width of the examples."""


def is_shipped(words: list[str]) -> bool:
    return any(SHIPPED.fullmatch(word) for word in words)


def comparable(lines: Iterable[str]) -> list[str]:
    """Return lines of output without the parts that differ from run to run: the seconds that the command took."""
    return [re.sub(r"\b\d+\.\d\d s$", "0.12 s", line.rstrip()) for line in lines]


def differences(shown: Iterable[str], printed: Iterable[str]) -> str:
    """Return the first difference between an example and the output of its command, or "". A line "…" stands for any lines. The commands
    after `next:` and warnings may be missing at the end."""
    want, got, at = comparable(shown), comparable(printed), 0
    while want and not want[-1]:
        want.pop()
    skipping = False
    for line in want:
        if line.strip() == "…":
            skipping = True
            continue
        while skipping and at < len(got) and got[at] != line:
            at += 1
        if at == len(got) or got[at] != line:
            return f"{line!r} instead of {got[at] if at < len(got) else 'the end'!r}"
        at, skipping = at + 1, False
    left = got[at:] if not skipping else []
    while left and not left[0].startswith(("warning: ", "  next: ")):
        if left[0]:
            return f"{left[0]!r} is missing at the end"
        left = left[1:]
    return ""


def likeness(shown: Iterable[str], printed: Iterable[str]) -> float:
    """Return the fraction (0 to 1) of an example's words that the command prints in the same order. All numbers, units and bars count as
    equal."""
    want, got = (list(_plain_words(lines)) for lines in (shown, printed))
    found = difflib.SequenceMatcher(None, want, got, autojunk=False).get_matching_blocks()
    return sum(block.size for block in found) / max(1, len(want))


def _plain_words(lines: Iterable[str]) -> Iterator[str]:
    for word in " ".join(line for line in lines if line.strip() != "…").split():
        plain = re.sub(r"0x[0-9a-f]+|\d[\d,.]*", "#", word)
        if plain not in ("B", "KiB", "MiB", "GiB", "%", "#") and not set(plain) <= {"█"}:
            yield plain


def pool_file() -> str:
    """Return the pool file of docs/pool-files.md, which has two entries."""
    return "\n".join(re.findall(r"^```toml\n(.*?)^```", (ROOT / "docs" / "pool-files.md").read_text(encoding="utf-8"), re.S | re.M))
