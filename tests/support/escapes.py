"""Names with terminal escapes, everywhere in a core. The names in a real program's core and files are replaced by others of the same
length; the checks find characters that no output may contain."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import subprocess
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import commandline
import truth

import cores
from findleaks import cli

FORGED = "FORGED"
"""A text that begins a line of output only if the line feed in a name was printed."""

ACTING = (
    b"\x1b[31m\x9b2J\xc2\x9b3J\n" + FORGED.encode() + b"\r\x08\x7f"  # colour, a C1 control as a byte and as UTF-8, line ends, erasing
    b"\x1b]0;T\x07\x1b]52;c;QQ==\x07\x1b]8;;x:y\x1b\\"  # title, clipboard, hyperlink
    b"\xe2\x80\xae\xe2\x81\xa6\xe2\x80\x8f\xd8\x9c"  # U+202E, U+2066, U+200F, U+061C
    b"\xe2\x80\xa8\xe2\x80\x8b\xef\xbb\xbf\xf3\xa0\x81\x81"  # U+2028, U+200B, U+FEFF, U+E0041
    b"'\";&$(x)`<script>"
)
ACTING_TYPE = b"\xc2\x9b3J\x9b2J\xe2\x80\xae\xe2\x81\xa6\xe2\x80\x8f\xd8\x9c\xe2\x80\xa8\xe2\x80\x8b\xef\xbb\xbf\xf3\xa0\x81\x81"
"""Escapes that may be in the name of a type: only ASCII letters, digits and similar characters. With other characters, findleaks does not
recognise the text as a name."""

LONG = 132
SHORT = "escapes_program"
"""The kernel's name of the process."""

PROGRAM, LIBRARY, DATA = (f"escapes_{name}_".ljust(LONG, "q") for name in ("program", "library", "data"))
SYMBOLS = {name: f"Escapes_{name}_".ljust(LONG, "q") for name in ("type", "global", "local", "function", "caller")}
TEXT = "Escapes_text_".ljust(LONG, "q")
LIBC = b"/libc.so.6\0"


def acting(name: str) -> bytes:
    """Return a name with terminal escapes that has the same length."""
    if name == SHORT:
        return b"\x1b[2J\x9b\nFORGED\xe2\x80\xae"
    if name == TEXT:  # mostly text: findleaks shows no other bytes as text
        return (b"lorem \x1b[31m dolor\xe2\x80\xae \n" + FORGED.encode() + b" " + name.encode())[:LONG]
    made = ACTING_TYPE if name == SYMBOLS["type"] else ACTING
    return (name[:12].encode() + made).ljust(len(name), name[-1:].encode())


def replace_names(data: bytes) -> bytes:
    """Replace all names of the process in these bytes of a file or a core."""
    for name in (PROGRAM, LIBRARY, DATA, TEXT, *SYMBOLS.values(), SHORT):
        made = acting(name)
        assert len(made) == len(name)
        data = data.replace(name.encode(), made)
    return data.replace(LIBC, b"/libc\x1b[1m\x9b\0")


def harmless(core: bytes) -> bytes:
    """Return a core in which only libc's name is replaced, so that its file is not found."""
    return core.replace(LIBC, b"/libc_so_6\0")


class Built(NamedTuple):
    program: Path
    library: Path
    data: Path


def build(folder: Path) -> Built:
    """Build the program with names that have no escapes."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Built(folder / PROGRAM, folder / LIBRARY, folder / DATA)
    names = [f"-DNAME_{name.upper()}={value}" for name, value in SYMBOLS.items()]
    words = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-Wl,--build-id"]
    library = [*names, f"-DNAME_TEXT={TEXT}", "-shared", "-fPIC", truth.PROGRAMS / "escapes_library.cpp"]
    subprocess.run([*words, *library, "-o", made.library], check=True)
    subprocess.run([*words, truth.PROGRAMS / "escapes.cpp", "-o", made.program], check=True)
    made.data.write_bytes(bytes(1 << 16))
    return made


def rename_files(built: Built) -> Built:
    """Copy the files, and replace the names in them and their own names."""
    return Built(*map(_renamed, built))


def _renamed(path: Path) -> Path:
    made = os.path.join(os.fsencode(path.parent), acting(path.name))
    with open(made, "wb") as file:
        file.write(replace_names(path.read_bytes()))
    os.chmod(made, 0o755)
    return Path(os.fsdecode(made))


def running(built: Built, folder: Path, how: str = "sound") -> cores.Running:
    return cores.Running([*map(str, built), how], folder)


# -- output


class Printed(NamedTuple):
    """The bytes of standard output and standard error."""

    status: int
    out: bytes
    err: bytes

    def objects(self) -> list[Any]:
        """Parse the JSON objects, and check that any parser accepts their strings. Lone surrogates raise UnicodeEncodeError."""
        found = [json.loads(line) for line in self.out.splitlines()]
        json.dumps(found, ensure_ascii=False).encode()
        return found


_OPENING = cli._open if os.environ.get("FINDLEAKS_TEST_FRESH") == "1" else commandline.opening_once(cli._open)


def ask(*words: str, width: int = 10_000) -> Printed:
    """Run a command in this process, which opens each core once, and return its output."""
    out, err = io.BytesIO(), io.BytesIO()
    streams = [io.TextIOWrapper(stream, encoding="utf-8", write_through=True) for stream in (out, err)]
    columns = mock.patch.dict(os.environ, {"COLUMNS": str(width)})
    opening = mock.patch.object(cli, "_open", _OPENING)
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]), columns, opening:
        status = cli.main(list(words))
    return Printed(status, out.getvalue(), err.getvalue())


def check(output: bytes, what: object) -> None:
    """Check that no character controls a terminal or is invisible, that all output is UTF-8, and that no line begins with the second line
    of a name."""
    text = output.decode("utf-8")  # with strict error handling
    wrong = sorted({f"U+{ord(c):04X}" for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")})
    assert not wrong, (what, wrong, text[:4000])
    assert not re.search(rf"^\W*{FORGED}", text, re.MULTILINE), (what, text[:4000])


def as_json(name: bytes) -> str:
    """Return a name of the target as it is in JSON: each byte that is not UTF-8 is written as four characters."""
    return name.decode("utf-8", "backslashreplace")


def shape(value: Any) -> Any:
    """Return the structure of JSON: keys, lengths, numbers, and for each string whether it is empty."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items() if key not in ("seconds", "hint", "text", "what", "warnings")}
    if isinstance(value, list):
        return [shape(one) for one in value]
    return bool(value) if isinstance(value, str) else value


def read_printed(words: Sequence[str], environment: dict[str, str]) -> bytes:
    """Return what a program prints on both streams between the lines @@begin and @@end."""
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=180, env=environment)
    _, begin, rest = done.stdout.partition(b"\n@@begin\n")
    inner, end, _ = rest.partition(b"\n@@end\n")
    assert begin and end, done.stdout
    return inner
