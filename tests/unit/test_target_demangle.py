"""C++ names, against c++filt, and names that are none."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from findleaks.demangle import demangle

NAMES = [
    "_ZTV3Foo",
    "_ZTVN5osgeo4proj5datum9EllipsoidE",
    "_ZTIN1a1bE",
    "_ZTTN1a1bE",
    "_ZTVSt9exception",
    "_ZTVN12_GLOBAL__N_13BarE",
    "_ZTVSt6vectorIiSaIiEE",
    "_ZTVN1aI1bEE",
    "_ZNK3Foo3barEv",
    "_ZN3FooC2Ev",
    "_ZThn16_N3Foo3barEv",
]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_those_of_cxxfilt(name: str) -> None:
    cxxfilt = shutil.which("c++filt")
    assert cxxfilt, "binutils are needed for this test"
    assert demangle(name) == subprocess.run([cxxfilt, name], capture_output=True, text=True, check=True).stdout.strip()
    assert demangle(name) != name


@pytest.mark.parametrize(
    "name", ["main", "", "_Z", "_ZN", "_ZTV", "_ZTV9999999999X", "_ZTVN1a1b", "_RNvC6_123foo3bar", "_ZTV3Fo", "_Z" + "N" * 40_000]
)
def test_other_names_stay_as_they_are(name: str) -> None:
    assert demangle(name) == name
