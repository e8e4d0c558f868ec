"""Rust's symbol names: names from rustc 1.95, those of the standard library compared with c++filt, and malicious names."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import truth
from hostile import lines_run
from hypothesis import given
from hypothesis import strategies as st

from findleaks.demangle import LONGEST_TEXT as LIMIT
from findleaks.demangle import demangle
from findleaks.demangle_rust import demangle_rust
from findleaks.demangle_rust_v0 import LONGEST_TEXT

NAMES = dict(line.split("\t") for line in (truth.PROGRAMS / "rust_names.tsv").read_text("utf-8").splitlines())
"""Mangled and readable names, in both schemes, one of each production of the grammar that rustc 1.95 uses."""


@pytest.mark.parametrize(("mangled", "readable"), NAMES.items())
def test_names(mangled: str, readable: str) -> None:
    assert demangle(mangled) == readable
    assert demangle(mangled + ".llvm.12A34567890123456789") == readable
    assert demangle(mangled + ".cold") == f"{readable} [clone .cold]"
    assert demangle(mangled + ".0") == readable + ".0"


def test_two_builds_have_the_same_names() -> None:
    assert demangle("_RNvNtCs1234_7mycrate6server3run") == demangle("_RNvNtCsZ9a_7mycrate6server3run") == "mycrate::server::run"
    one, other = (f"_ZN7mycrate6server3run17h{digit * 16}E" for digit in "0f")
    assert demangle(one) == demangle(other) == "mycrate::server::run"


def without_hashes(text: str) -> str:
    """Return the names that c++filt prints, without hashes of crates, types of constants, and suffixes."""
    text = re.sub(r"(\w)\[(?:0|[0-9a-f]{5,16})\]", r"\1", re.sub(r"::h[0-9a-f]{16}$", "", text))
    return re.sub(r"(\b\d+|'|true|false): (?:[iu](?:8|16|32|64|128|size)|char|bool)\b", r"\1", text)


def cxxfilt(names: list[str]) -> list[str]:
    tool = shutil.which("c++filt")
    assert tool, "this test needs binutils"
    done = subprocess.run([tool], input="\n".join(names) + "\n", capture_output=True, text=True, check=True)
    return [without_hashes(line) for line in done.stdout.splitlines()]


def test_names_equal_those_of_cxxfilt() -> None:
    names = [name for name in NAMES if "gr$uf6$" not in name]  # c++filt does not decode non-ASCII letters in the middle of a name
    assert [demangle(name) for name in names] == cxxfilt(names)


def test_the_standard_library_against_cxxfilt() -> None:
    rustc = shutil.which("rustc")
    assert rustc is not None, "this test needs rustc: apt-get install cargo"
    root = subprocess.run([rustc, "--print", "sysroot"], capture_output=True, text=True, check=True).stdout.strip()
    library = next(Path(root).glob("lib/rustlib/*/lib/libstd-*.so"), None) or next(Path(root).glob("lib/*/libstd-*.so"))
    lines = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout.splitlines()
    found = [line.split()[-1].split(".llvm.")[0] for line in lines]
    names = sorted({name for name in found if name.startswith("_R") or re.search("17h[0-9a-f]{16}E$", name)})
    assert len(names) > 1000
    assert not [(name, demangle(name), text) for name, text in zip(names, cxxfilt(names)) if demangle(name) != text]


def nest_pairs(levels: int) -> str:
    """Return nested pairs: both elements of a pair are a backref to the next inner pair, so there are 2 ** levels elements."""
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    name, last = "IC1aTaaE", 4
    for _ in range(levels):
        number, text = last - 1, ""
        while True:
            number, digit = divmod(number, 62)
            text = digits[digit] + text
            if not number:
                break
        last = len(name)
        name += f"TB{text}_B{text}_E"
    return f"_R{name}E"


BOMBS = [
    nest_pairs(8),
    nest_pairs(40),
    nest_pairs(300),
    "_RIC1a" + "T" * 2000 + "E" * 2001,
    "_RIC1a" + "TE" * 2000 + "E",
    "_RMC1aFGZZZZZZZZZZ_uEu",
    "_RMC1aFGzz_EuE",
    "_RMs_B_B_",
    "_RNvB_1a",
    "_R" + "NvC1a" * 500,
    "_RYB_" + "B_" * 500,
    "_RNvC1au4000" + "a" * 4000,
    "_RNvC1au3999a_" + "9" * 3997,
    "_RIC1aKe" + "0a" * 1500 + "_E",
    "_ZN" + "9" * 4000 + "17h0123456789abcdefE",
    "_ZN" + "1a" * 1900 + "17h0123456789abcdefE",
    "_ZN12$u1b$[31mred17h0123456789abcdefE",
]


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_harmless(name: str) -> None:
    texts: list[str] = []
    lines_run(lambda: texts.append(demangle.__wrapped__(name)), 1_000_000)
    assert texts[0] == name or len(texts[0]) <= LONGEST_TEXT
    assert "\x1b" not in texts[0]


def test_moderate_repetition_is_shown() -> None:
    """The limits cut off exponential names, not long ones: 510 elements are printed, 2 ** 42 are not."""
    assert demangle(nest_pairs(2)) == "a::<(i8, i8), ((i8, i8), (i8, i8)), (((i8, i8), (i8, i8)), ((i8, i8), (i8, i8)))>"
    assert demangle(nest_pairs(7)).count("i8") == 2 * (2**8 - 1)
    assert demangle(nest_pairs(40)) == nest_pairs(40)


@given(st.text(alphabet="RNCIMXYBKvtsEGLTDFUQOPSAuaepn_0123456789abh", max_size=80))
def test_random_names_raise_nothing(text: str) -> None:
    demangle_rust("_R" + text)
    demangle_rust(f"_ZN{text}17h0123456789abcdefE")


def test_damaged_names_raise_nothing() -> None:
    chosen = random.Random(7)
    names = list(NAMES)
    for _ in range(5_000):
        name = list(chosen.choice(names))
        for _ in range(chosen.randrange(1, 4)):
            name[chosen.randrange(2, len(name))] = chosen.choice("BIRTEFDKNMXYCpLG_01aszuj$.")
        demangle.__wrapped__("".join(name))


def test_limit_equals_that_of_other_languages() -> None:
    assert LONGEST_TEXT == LIMIT
