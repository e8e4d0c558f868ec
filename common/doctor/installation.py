"""Check the C engine and the libraries of this installation."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

from findleaks.demangle import LIBRARIES, demangle_type
from findleaks.engine.load import missing_native
from findleaks.results.environment import Check
from findleaks.target.arch import ARM, S390X, X86_64

AREA = "findleaks"
VARIANTS = (("64-bit little-endian", X86_64), ("32-bit little-endian", ARM), ("64-bit big-endian", S390X))

_NEEDED = (
    ("capstone", "capstone", "disassembly: dead registers, inlined callers, callers without unwind tables"),
    ("elftools", "pyelftools", "debug information: fields, source lines, types"),
)
_OPTIONAL = (
    ("zstandard", "zstandard", "zstandard", "cores packed with zstd"),
    ("protobuf", "google.protobuf", "findleaks[pprof]", "profiles for pprof (-o FILE.pb.gz)"),
    ("pillow", "PIL", "findleaks[png]", "pictures (map -o FILE.png)"),
    ("pyarrow", "pyarrow", "findleaks[parquet]", "Parquet files (-o FILE.parquet)"),
    ("pandas", "pandas", "findleaks[pandas]", "data frames of the Python API"),
    ("distributed", "distributed", "findleaks[fleet]", "triage on several machines (--scheduler)"),
)
_STANDARD = {"zstandard": "compression.zstd"}  # modules of Python 3.14 that replace these libraries


def check_installation() -> Iterator[Check]:
    """Check the C engine, the required libraries, the C++ library, and the optional libraries."""
    yield check_engine()
    for module, package, use in _NEEDED:
        found = _version(module, package)
        if found:
            yield Check(AREA, package, "ok", found, "")
        else:
            yield Check(AREA, package, "failed", f"not installed; without it there is no {use}", f"pip install {package}")
    yield check_demangler()
    for name, module, package, use in _OPTIONAL:
        if _exists(module) or _exists(_STANDARD.get(name, "")):
            yield Check(AREA, name, "ok", use, "")
        else:
            yield Check(AREA, name, "missing", f"optional, for {use}", f"pip install '{package}'")


def check_engine() -> Check:
    """Check that the C engine loads for each kind of target."""
    broken = [f"{name}: {why}" for name, arch in VARIANTS if (why := missing_native(arch))]
    if not broken:
        return Check(AREA, "C engine", "ok", "loaded for " + ", ".join(name for name, _ in VARIANTS) + " targets", "")
    return Check(AREA, "C engine", "failed", broken[0], "apt install gcc, then install findleaks again")


def check_demangler() -> Check:
    """Check that C++ names are demangled. Minimal containers do not have the library for this."""
    if demangle_type("N4shop5OrderE") == "shop::Order":
        return Check(AREA, "C++ library", "ok", "names of C++ are demangled", "")
    return Check(AREA, "C++ library", "limited", f"no {LIBRARIES[0]}: names of C++ stay mangled", "apt install libstdc++6")


def _version(module: str, package: str) -> str:
    """Return the version of an installed library; "installed" if it has none; "" if it is
    missing."""
    if not _exists(module):
        return ""
    try:
        return version(package)
    except PackageNotFoundError:
        return "installed"


def _exists(module: str) -> bool:
    try:
        return bool(module) and find_spec(module) is not None
    except ImportError:  # the package that contains it is missing
        return False
