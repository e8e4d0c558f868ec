"""The parsers accept every command line in README and in the documentation, and every option in them exists."""

from __future__ import annotations

import re
from collections.abc import Iterator

import documented
from documented import ROOT

from findleaks import cli, commands
from findleaks.catalogue import CATALOGUE, FRONT, SETUP
from findleaks.errors import UsageError
from findleaks.setup_commands import setup_parser

VALUES = {"PID": "4711", "COMMAND": "find"}
"""What stands for a placeholder of a command in a sentence."""

OF_OTHERS = {
    "docker": {"--cap-add"},
    "cp": {"--sparse"},
    "fallocate and tar": {"--hole-detection"},
    "LLDB": {"--force", "--plugin-name", "--style"},
    "bcc's memleak": {"--combined-only"},
    "configure scripts": {"--with-malloc"},
    "jeprof": {"--text"},
    "memray": {"--native"},
    "pip": {"--no-binary", "--find-links"},
    "Valgrind": {"--leak-check"},
    "tests/bench": {"--runs"},
    "every command": {"--help", "--help-all"},
}
"""Options that pages name, and that findleaks does not have, by the program that has them."""


def parse(words: list[str], prog: str, sentence: bool) -> None:
    """Raise UsageError unless `prog` ("findleaks" or "leaks") accepts these words. `sentence`: the words are from a
    sentence, and the process may be missing."""
    if prog == "findleaks":
        if words[0] in FRONT or words == ["--help"]:
            return  # other words are commands of the debugger
        if words[0] in SETUP:
            commands.parse(setup_parser(words[0]), words[1:])
            return
        if words[0] not in CATALOGUE:
            words = [cli.DEFAULT, *words]
    cmd = commands.find_command(words[0])
    if cmd is None:
        raise UsageError(f"no command {words[0]!r}")
    args = commands.parse(cli.command_parser(cmd) if prog == "findleaks" else commands.parser(cmd, prog), words[1:])
    assert args is not None, "pages do not show help"
    if cmd.check is not None:
        cmd.check(args)
    if prog == "findleaks" and cmd.in_shell is None and not sentence:
        if cmd.subject:
            cli._subject_and_core(args, cmd.subject)
        else:
            cli._core_word(args, cmd.positional)


def test_each_command_parses() -> None:
    wrong, seen = [], 0
    for example in documented.examples():
        prog = "leaks" if example.prompt.startswith("(") or example.command.startswith("leaks") else "findleaks"
        for words in documented.calls(example):
            seen += 1
            if not example.prompt:
                words = [VALUES.get(word, word) for word in words if word != "--help" or len(words) == 1]
                if len(words) == 1 and words[0] in CATALOGUE:
                    continue  # the sentence names the command
            try:
                parse(words, prog, not example.prompt)
            except UsageError as error:
                wrong.append(f"{example.place}: {example.command}: {error}")
    assert not wrong, "\n".join(wrong)
    assert seen > 180


def options() -> Iterator[str]:
    """Return all options of all commands."""
    made = [cli.command_parser(commands.load(word)) for word in CATALOGUE] + [setup_parser(word) for word in SETUP]
    for parser in made:
        for action in parser._actions:
            yield from action.option_strings


def test_each_option_in_a_sentence_exists() -> None:
    known = set(options()).union(*OF_OTHERS.values())
    named: dict[str, str] = {}
    for page in documented.pages():
        if page.startswith("docs/") or page in ("README.md", "SECURITY.md"):
            for code in re.findall(r"`([^`\n]+)`", (ROOT / page).read_text(encoding="utf-8")):
                named.update((option, page) for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", code))
    assert len(named) > 60
    assert {option: page for option, page in named.items() if option not in known} == {}


PAGE = """
# A page

Run `findleaks find --limit 3` or `findleaks find [options]`.

```
$ findleaks find --by type \\
    core > errors | head   # a comment
first

$ ls
(gdb) leaks whatis *(void**)(0x10+8)
second

third
```

1. In a list:

       $ A=b findleaks verdict core && findleaks diff a b
       fourth
"""


def test_how_pages_are_read() -> None:
    found = list(documented.parse("page", PAGE))
    assert [(one.line, one.prompt, one.output) for one in found] == [
        (7, "$", ("first", "")),
        (11, "$", ()),
        (12, "(gdb)", ("second", "", "third")),
        (20, "$", ("fourth",)),
        (4, "", ()),
        (4, "", ()),
    ]
    assert [list(documented.calls(one)) for one in found] == [
        [["find", "--by", "type", "core"]],
        [],
        [["whatis", "*(void**)(0x10+8)"]],
        [["verdict", "core"], ["diff", "a", "b"]],
        [["find", "--limit", "3"]],
        [],
    ]
