"""Quote the words of suggested commands, so that they can be pasted into a shell, GDB or LLDB."""

from __future__ import annotations

import re


def shell_quoted(word: str) -> str:
    """Quote a word for sh, bash and zsh. (zsh would replace a word that begins with = by the path
    of a command.) The result has only printable characters. A word with other characters is written
    as $'…', with bytes in octal (POSIX 2024, 2.2.4). shlex.split can read all results except those
    with $'…'."""
    if not word.isprintable():
        return "$'" + "".join(map(_ansi_c, word)) + "'"
    if word[:1] == "=" and "'" not in word:
        return f"'{word}'"
    if re.fullmatch(r"[\w@%+=:,./-]+", word, re.ASCII):
        return word
    return "'" + word.replace("'", "'\"'\"'") + "'"


def _ansi_c(character: str) -> str:
    if character in "'\\":
        return "\\" + character
    if character.isprintable():
        return character
    return "".join(f"\\{byte:03o}" for byte in character.encode("utf-8", "surrogateescape"))


def debugger_quoted(word: str) -> str:
    """Quote a word for both debuggers.
    GDB (libiberty's buildargv) interprets a backslash even in single quotes. In double quotes, it
    agrees with shlex.split, which reads LLDB's lines."""
    return word if re.fullmatch(r"[^\s'\"\\]+", word) else '"' + re.sub(r'(["\\])', r"\\\1", word) + '"'


def for_debugger(words: str) -> str:
    """Convert words that are quoted for a shell to words that are quoted for a debugger."""
    if "'" not in words:
        return words
    import shlex  # few words need this

    return " ".join(map(debugger_quoted, shlex.split(words)))
