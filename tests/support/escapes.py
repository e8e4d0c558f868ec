"""Names that act on a terminal, in everything a core carries: a real program's core and files, whose names are replaced by others of the
same length; and what no output may hold."""

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
"""Stands at the beginning of a line where a name's line feed was let through."""

ACTING = (
    b"\x1b[31m\x9b2J\xc2\x9b3J\n" + FORGED.encode() + b"\r\x08\x7f"  # colour, C1 as a byte and as UTF-8, line ends, erasing
    b"\x1b]0;T\x07\x1b]52;c;QQ==\x07\x1b]8;;x:y\x1b\\"  # title, clipboard, hyperlink
    b"\xe2\x80\xae\xe2\x81\xa6\xe2\x80\x8f\xd8\x9c"  # U+202E, U+2066, U+200F, U+061C
    b"\xe2\x80\xa8\xe2\x80\x8b\xef\xbb\xbf\xf3\xa0\x81\x81"  # U+2028, U+200B, U+FEFF, U+E0041
    b"'\";&$(x)`<script>"
)
ACTING_TYPE = b"\xc2\x9b3J\x9b2J\xe2\x80\xae\xe2\x81\xa6\xe2\x80\x8f\xd8\x9c\xe2\x80\xa8\xe2\x80\x8b\xef\xbb\xbf\xf3\xa0\x81\x81"
"""What may are in a type's name: no ASCII but letters, digits and the like, or it is taken for none."""

LONG = 132
SHORT = "escapes_program"
"""The kernel's name of the process."""

PROGRAM, LIBRARY, DATA = (f"escapes_{name}_".ljust(LONG, "q") for name in ("program", "library", "data"))
SYMBOLS = {name: f"Escapes_{name}_".ljust(LONG, "q") for name in ("type", "global", "local", "function", "caller")}
TEXT = "Escapes_text_".ljust(LONG, "q")
LIBC = b"/libc.so.6\0"


def acting(name: str) -> bytes:
    """A name of the same length that acts."""
    if name == SHORT:
        return b"\x1b[2J\x9b\nFORGED\xe2\x80\xae"
    if name == TEXT:  # mostly text: findleaks shows no other as one
        return (b"lorem \x1b[31m dolor\xe2\x80\xae \n" + FORGED.encode() + b" " + name.encode())[:LONG]
    made = ACTING_TYPE if name == SYMBOLS["type"] else ACTING
    return (name[:12].encode() + made).ljust(len(name), name[-1:].encode())


def replaced(data: bytes) -> bytes:
    """All names of the process in these bytes of a file or a core replaced."""
    for name in (PROGRAM, LIBRARY, DATA, TEXT, *SYMBOLS.values(), SHORT):
        made = acting(name)
        assert len(made) == len(name)
        data = data.replace(name.encode(), made)
    return data.replace(LIBC, b"/libc\x1b[1m\x9b\0")


def harmless(core: bytes) -> bytes:
    """A core in which only libc's name is another, so that its file is not found either."""
    return core.replace(LIBC, b"/libc_so_6\0")


class Built(NamedTuple):
    program: Path
    library: Path
    data: Path


def build(folder: Path) -> Built:
    """The program with harmless names."""
    folder.mkdir(parents=True, exist_ok=True)
    made = Built(folder / PROGRAM, folder / LIBRARY, folder / DATA)
    names = [f"-DNAME_{name.upper()}={value}" for name, value in SYMBOLS.items()]
    words = ["g++", "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-Wl,--build-id"]
    library = [*names, f"-DNAME_TEXT={TEXT}", "-shared", "-fPIC", truth.PROGRAMS / "escapes_library.cpp"]
    subprocess.run([*words, *library, "-o", made.library], check=True)
    subprocess.run([*words, truth.PROGRAMS / "escapes.cpp", "-o", made.program], check=True)
    made.data.write_bytes(bytes(1 << 16))
    return made


def renamed(built: Built) -> Built:
    """The same files beside them, the names in them and their own replaced."""
    return Built(*map(_renamed, built))


def _renamed(path: Path) -> Path:
    made = os.path.join(os.fsencode(path.parent), acting(path.name))
    with open(made, "wb") as file:
        file.write(replaced(path.read_bytes()))
    os.chmod(made, 0o755)
    return Path(os.fsdecode(made))


def running(built: Built, folder: Path, how: str = "sound") -> cores.Running:
    return cores.Running([*map(str, built), how], folder)


# -- what is printed


class Printed(NamedTuple):
    """The bytes of both streams."""

    status: int
    out: bytes
    err: bytes

    def objects(self) -> list[Any]:
        """The JSON objects, which any parser takes: lone surrogates have no UTF-8."""
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
    """No character acts on a terminal, or cannot be seen; all is UTF-8; no line begins as a name's second line would."""
    text = output.decode("utf-8")  # strictly
    wrong = sorted({f"U+{ord(c):04X}" for c in text if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")})
    assert not wrong, (what, wrong, text[:4000])
    assert not re.search(rf"^\W*{FORGED}", text, re.MULTILINE), (what, text[:4000])


def as_json(name: bytes) -> str:
    """A name of the target as JSON hands it on: what is no UTF-8 as four characters."""
    return name.decode("utf-8", "backslashreplace")


def shape(value: Any) -> Any:
    """The structure of JSON: keys, lengths and numbers, and of texts whether there are any."""
    if isinstance(value, dict):
        return {key: shape(one) for key, one in value.items() if key not in ("seconds", "hint", "text", "what", "warnings")}
    if isinstance(value, list):
        return [shape(one) for one in value]
    return bool(value) if isinstance(value, str) else value


def printed(words: Sequence[str], environment: dict[str, str]) -> bytes:
    """What a program prints on both streams, between the lines @@begin and @@end."""
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=180, env=environment)
    _, begin, rest = done.stdout.partition(b"\n@@begin\n")
    inner, end, _ = rest.partition(b"\n@@end\n")
    assert begin and end, done.stdout
    return inner
