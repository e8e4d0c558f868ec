"""Mangled names decoded by the C++ library: compared with c++filt, and malicious names."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hostile import lines_run
from hypothesis import given
from hypothesis import strategies as st

from findleaks import demangle as module
from findleaks.demangle import LONGEST_TEXT, demangle, demangle_type

NAMES = {
    "_ZTV3Foo": "vtable for Foo",
    "_ZTVN5osgeo4proj5datum9EllipsoidE": "vtable for osgeo::proj::datum::Ellipsoid",
    "_ZTTN1a1bE": "VTT for a::b",
    "_ZTVN12_GLOBAL__N_13BarE": "vtable for (anonymous namespace)::Bar",
    "_ZTC7Diamond0_11VirtualLeft": "construction vtable for VirtualLeft-in-Diamond",
    "_ZThn16_N3Foo3barEv": "non-virtual thunk to Foo::bar()",
    "_ZTv0_n24_N8ThrowingD1Ev": "virtual thunk to Throwing::~Throwing()",
    "_ZNK3Foo3barEv": "Foo::bar() const",
    "_ZN3FooC2Ev": "Foo::Foo()",
    "_ZN3FoocvbEv": "Foo::operator bool()",
    "_ZL7handleri": "handler(int)",
    "_Z3fooIiEvT_": "void foo<int>(int)",
    "_Z3fooPFvPKcE": "foo(void (*)(char const*))",
    "_Z1fRA3_KcM3FooFivE": "f(char const (&) [3], int (Foo::*)())",
    "_ZZ4mainENKUliE_clEi": "main::{lambda(int)#1}::operator()(int) const",
    "_ZTSN3BoxIZ4mainE5LocalLi3EEE": "typeinfo name for Box<main::Local, 3>",
    "_ZNSt6vectorIiSaIiEE9push_backEOi": "std::vector<int, std::allocator<int> >::push_back(int&&)",
    "_ZStlsISt11char_traitsIcEERSt13basic_ostreamIcT_ES5_PKc": (
        "std::basic_ostream<char, std::char_traits<char> >& std::operator<< <std::char_traits<char> >"
        "(std::basic_ostream<char, std::char_traits<char> >&, char const*)"
    ),
    "_Z3addIiEDTplT_T_ES0_S0_.cold": "",
    "_Znwm@@GLIBCXX_3.4": "operator new(unsigned long)@@GLIBCXX_3.4",
}


def cxxfilt(names: list[str]) -> list[str]:
    tool = shutil.which("c++filt")
    assert tool, "this test needs binutils"
    done = subprocess.run([tool], input="\n".join(names) + "\n", capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def normalize(name: str) -> str:
    """c++filt prints the long names of some standard classes, findleaks their short names."""
    for stream in ("istream", "ostream", "iostream"):
        name = name.replace(f"std::basic_{stream}<char, std::char_traits<char> >", f"std::{stream}")
    name = name.replace("std::basic_string<char, std::char_traits<char>, std::allocator<char> >", "std::string")
    return name.replace("(* (", "(*(").replace("std::string >", "std::string>")


@pytest.mark.parametrize(("mangled", "readable"), [item for item in NAMES.items() if item[1]])
def test_names(mangled: str, readable: str) -> None:
    assert demangle(mangled) == readable


@pytest.mark.parametrize("mangled", [n for n in NAMES if "@" not in n])
def test_names_equal_those_of_cxxfilt(mangled: str) -> None:
    assert normalize(demangle(mangled)) == normalize(cxxfilt([mangled])[0])


def test_types() -> None:
    assert demangle_type("N5osgeo4proj5datum9EllipsoidE") == "osgeo::proj::datum::Ellipsoid"
    assert demangle_type("i") == "int"
    assert demangle_type("PKc") == "char const*"
    assert demangle_type("St13runtime_error") == "std::runtime_error"
    assert [demangle_type(n) for n in ("", "hello world", "3Fo", "NE", "3FooX", "_ZTV3Foo", "9999999999X")] == [""] * 7


def test_a_whole_library_against_cxxfilt() -> None:
    """All exported names of libstdc++, except those that exceed the limits."""
    library = next(p for p in Path("/usr/lib").glob("*/libstdc++.so.6"))
    lines = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True).stdout.splitlines()
    names = sorted({line.split()[-1].split("@")[0] for line in lines if " _Z" in line})
    assert len(names) > 3000
    wrong = [(n, demangle(n), r) for n, r in zip(names, cxxfilt(names)) if normalize(demangle(n)) != normalize(r)]
    assert not [w for w in wrong if w[0] != w[1]], "names within the limits are right"
    assert not [w for w in wrong if w[0].startswith(("_ZTV", "_ZTS", "_ZTI"))]
    assert len(wrong) < len(names) / 100, wrong[:5]


def test_copies_of_data_are_named() -> None:
    """c++filt supports only copies of functions. LLVM's link-time optimisation also makes copies of data."""
    assert demangle("_ZN4llvmL5TableE.llvm.2593866529939609752") == "llvm::Table [clone .llvm.2593866529939609752]"
    assert demangle("_ZL7handleri.isra.0.cold") == "handler(int) [clone .isra.0] [clone .cold]"
    assert demangle("_Z.llvm.1") == "_Z.llvm.1"


def test_names_that_are_not_ascii() -> None:
    assert demangle("_ZN5K\u00e4se4rufeEv") == "K\u00e4se::rufe()"
    assert demangle_type("5K\u00e4se") == "K\u00e4se"
    assert demangle_type("2\udcff\udcfe") == "\udcff\udcfe", "bytes that are not UTF-8"
    assert demangle("_Z1f\0i") == "_Z1f\0i"
    assert demangle("_Z1f\ud800") == "_Z1f\ud800"


def test_without_a_library_names_stay_mangled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIBRARIES", ("libno-such-library.so.1",))
    module._cxa_demangle.cache_clear()
    try:
        assert demangle.__wrapped__("_ZTV3Foo") == "_ZTV3Foo"
        assert demangle_type.__wrapped__("3Foo") == ""
    finally:
        module._cxa_demangle.cache_clear()


UNREADABLE = ["main", "", "_Z", "_ZN", "_ZTV", "_ZTV9999999999X", "_ZTVN1a1b", "_RNvC6_123foo9bar", "_ZTV3Fo", "_ZTC3Foo"]


@pytest.mark.parametrize("name", UNREADABLE)
def test_other_names_stay_as_they_are(name: str) -> None:
    assert demangle(name) == name


def nested(levels: int, start: str, before: int) -> str:
    """Return A<A<A<start>, S…_>, S…_>: each level contains the level inside it twice. `before`: further parts to which names can refer."""
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    numbers = range(before + levels - 1, before + 2 * levels - 2)
    return "1AI" * levels + start + "E" + "".join(f"S{digits[n // 36] if n >= 36 else ''}{digits[n % 36]}_E" for n in numbers)


PRIMED = "".join(f"S{c}_" for c in "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ")
BOMBS = [
    "_Z" + "N" * 4000,
    "_Z1f" + "P" * 4000 + "i",
    "_Z1f" + "K" * 300 + "i",
    "_ZTV" + "3FooI" * 700 + "i" + "E" * 700,
    "_Z1fiP3FooI" + "".join(f"S{c}_S{c}_" for c in "0123456789ABCDEF") + "E",
    "_Z1f3BoxIiiE" + "".join(f"3BoxIS{c}_S{c}_E" for c in "_0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[1:]),
    "_Z1fI" + "J" * 3000,
    "_Z1fIXadXadXad",
    "_Z" + "Z" * 4000,
    "_ZN" + "S_" * 2000 + "E",
    "_Z1f" + "F" * 2000,
    "_Z1fDv" * 500,
    "_ZTS" + "A9_" * 1300 + "i",
    # Each of these names would take gigabytes of text, or hours of time.
    "_Z1f" + nested(30, "i", 0),
    "_Z1f" + nested(17, "1BI" + "y" * 700 + "E", 2),
    f"_Z1f{len(PRIMED)}{PRIMED}" + nested(30, "i", 1),
    f"_Z1f1S{len(PRIMED) + 4}FOO_{PRIMED}" + nested(30, "i", 2),
    "_Z1f" + nested(12, "N100" + "B" * 100 + "C1" * 200 + "E", 201),
    "_Z" + "Z1fI" * 29 + "i" + "EvT_E1g" * 29,
    "_Z1fI" + "XadL_Z1fI" * 28 + "i" + "EvT_EE" * 28 + "Evv",
    "_Z1fI" + "N1AcvT_I" * 40 + "i" + "EE" * 40 + "Evv",
    "_Z1fIJ" + "i" * 100 + "EEv" + "Dp1BIT_" * 6 + "E" * 6,
    "_Z1fIXsr1aDC1b1cEEvv",
    "_Z1fIXgssr1aDCK",
    "_ZN4llvmlsINS_24OptimizationRemarkMisvedEEERT_S3_NSt9enable_ifIXsr3std10is_base_ofINS_30DiticInf",
]


@pytest.mark.parametrize("name", BOMBS)
def test_bombs_are_harmless(name: str) -> None:
    texts: list[str] = []
    lines_run(lambda: texts.append(demangle.__wrapped__(name)), 20_000)
    assert len(texts[0]) <= max(LONGEST_TEXT, len(name))


def test_bombs_take_no_memory() -> None:
    """The peak memory is a property of the process, so a child process measures it."""
    program = (
        "import resource, sys; from findleaks.demangle import demangle\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "demangle('_Z1fv'); before = peak()\n"
        "for name in sys.argv[1:]: demangle(name)\n"
        "print(peak() - before)"
    )
    done = subprocess.run([sys.executable, "-c", program, *BOMBS], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 64 << 10


@given(st.text(alphabet="_ZNSTIEXLJPKRFADGt0123456789abcdefimvCsluhw", max_size=60))
def test_random_names_raise_nothing(text: str) -> None:
    demangle("_Z" + text)
    demangle_type(text)


def test_damaged_names_raise_nothing() -> None:
    chosen = random.Random(7)
    names = [n for n in NAMES if NAMES[n]]
    for _ in range(20_000):
        name = list(chosen.choice(names))
        for _ in range(chosen.randrange(1, 4)):
            at = chosen.randrange(2, len(name))
            name[at] = chosen.choice("_ZNSTIEXLJPKRFA0123456789abcdefimv")
        demangle.__wrapped__("".join(name))
