"""C++ names: the library's demangler, and what serves without it."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from findleaks.target.demangle import demangle, plain

PLAIN = {
    "_ZTV3Foo": "vtable for Foo",
    "_ZTVN5osgeo4proj5datum9EllipsoidE": "vtable for osgeo::proj::datum::Ellipsoid",
    "_ZTIN1a1bE": "typeinfo for a::b",
    "_ZTTN1a1bE": "VTT for a::b",
    "_ZTVSt9exception": "vtable for std::exception",
    "_ZTVN12_GLOBAL__N_13BarE": "vtable for (anonymous namespace)::Bar",
}


@pytest.mark.parametrize(("mangled", "readable"), PLAIN.items())
def test_plain_names_without_a_library(mangled: str, readable: str) -> None:
    assert plain(mangled) == readable


@pytest.mark.parametrize(("mangled", "readable"), PLAIN.items())
def test_the_library_agrees(mangled: str, readable: str) -> None:
    assert demangle(mangled) == readable


@pytest.mark.parametrize("name", ["main", "", "_Z", "_ZN", "_ZTV", "_ZTV9999999999X", "_ZTVN1a1b", "_RNvC6_123foo3bar", "_ZTV3Fo", "_Z" + "N" * 40_000])
def test_other_names_stay_as_they_are(name: str) -> None:
    assert demangle(name) == name
    assert plain(name) in ("", demangle(name))


@pytest.mark.parametrize("name", ["_ZTVSt6vectorIiSaIiEE", "_ZTVN1aI1bEE", "_ZNK3Foo3barEv", "_ZN3FooC2Ev", "_ZThn16_N3Foo3barEv"])
def test_the_library_is_used_and_agrees_with_cxxfilt(name: str) -> None:
    cxxfilt = shutil.which("c++filt")
    assert cxxfilt, "binutils are needed for this test"
    assert demangle(name) == subprocess.run([cxxfilt, name], capture_output=True, text=True, check=True).stdout.strip()
    assert demangle(name) != name


def test_templates_are_beyond_the_fallback() -> None:
    assert plain("_ZTVSt6vectorIiSaIiEE") == ""
    assert plain("_ZTVN1aI1bEE") == ""
