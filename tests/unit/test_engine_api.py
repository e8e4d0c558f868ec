"""The C engine's functions and structures have the types that Python and the fuzzer use (common/native/api.h)."""

from __future__ import annotations

import ctypes
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from findleaks.engine.native import declarations
from findleaks.engine.native.memory import CPiece, CRange
from findleaks.engine.native.sources import FOLDER, VARIANTS

API = "".join(Path(FOLDER, name).read_text() for name in ("api.h", "api_formats.h"))
HANDLES = frozenset(
    (
        "blocks",
        "graph",
        "grouping",
        "counting",
        "disguises",
        "dominators",
        "examination",
        "fields",
        "shared_roots",
        "tree_walk",
        "link_walk",
        "records",
        "shifts",
        "spread",
        "types",
    )
)
STRUCTURES = ("block_total", "cache", "chain", "class", "exclusion", "form", "run", "slab", "slot_group", "user")
ROWS = {"range", "kind_figures", "struct frame_layout", *(f"struct {name}" for name in STRUCTURES)}
"""Structures of words: Python may pass an array of words."""

U64S, U32S, U8S = (ctypes.POINTER(number) for number in (ctypes.c_uint64, ctypes.c_uint32, ctypes.c_ubyte))
VALUES: dict[str, Any] = {
    "void": None,
    "int": ctypes.c_int,
    "unsigned": ctypes.c_uint,
    "bool": ctypes.c_bool,
    "int64_t": ctypes.c_int64,
    "uint64_t": ctypes.c_uint64,
    "uint32_t": ctypes.c_uint32,
    "uint8_t": ctypes.c_ubyte,
}
STRUCTURES: dict[str, Any] = {
    "piece": CPiece,
    "range": CRange,
    "words": declarations.CWords,
    "struct go_types": declarations.CGoTypes,
    "struct go_pointers": declarations.CGoPointers,
    "struct java_heap": declarations.CJavaHeap,
    "struct row_rules": declarations.CRules,
    "struct row_columns": declarations.CRowColumns,
    "struct run_search": declarations.CRunSearch,
    "bytes": declarations.CBytes,
    "struct source": declarations.CSource,
    "struct table_column": declarations.CBytes,
}


def parse_declarations(text: str) -> dict[str, tuple[str, list[str]]]:
    """Return, for each function, the type of its result and those of its parameters, without "const" and without spaces
    around asterisks."""
    found = {}
    for result, name, parameters in re.findall(r"^API ([^;()]*?)(fl_\w+)\(([^)]*)\);", text, re.M):
        each = [] if parameters == "void" else parameters.split(",")
        found[name] = (normalize(result), [normalize(re.sub(r"\w+\s*$", "", one)) for one in each])
    return found


def normalize(declaration: str) -> str:
    return re.sub(r"\s*\*", "*", " ".join(declaration.replace("const", " ").split()))


def list_accepted(c_type: str) -> set[Any]:
    """Return the ctypes types that may be declared for a type of C."""
    if "*" not in c_type:
        return {VALUES[c_type]}
    to = c_type[:-1]
    if to.removeprefix("struct ") in HANDLES or to in ("void", "void*", "uint8_t*"):
        return {ctypes.POINTER(ctypes.c_void_p)} if to.endswith("*") else {ctypes.c_void_p}
    if to == "range*":
        return {ctypes.POINTER(U64S)}
    found = {ctypes.POINTER(STRUCTURES[to])} if to in STRUCTURES else set()
    if to in ROWS or to == "uint64_t":
        found.add(U64S)
    return found | {"uint32_t": {U32S}, "uint8_t": {U8S, ctypes.c_char_p}, "bool": {ctypes.POINTER(ctypes.c_bool)}}.get(to, set())


DECLARED = parse_declarations(API)


def test_the_header_declares_what_the_sources_define() -> None:
    """The header declares all functions of the sources. The compiler checks the types, as each source includes the header."""
    defined = {name for path in Path(FOLDER).glob("*.c") for name in re.findall(r"^API [^;{]*?(fl_\w+)\(", path.read_text(), re.M)}
    assert defined == set(DECLARED)
    assert len(DECLARED) == API.count("\nAPI ")


def test_python_calls_the_functions_that_the_header_declares() -> None:
    assert set(declarations.SIGNATURES) == set(DECLARED)


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_python_passes_what_the_header_declares(name: str) -> None:
    result, parameters = DECLARED[name]
    given_result, given = declarations.SIGNATURES[name]
    assert given_result in list_accepted(result), result
    assert len(given) == len(parameters)
    assert [(at, one) for at, one in enumerate(parameters) if given[at] not in list_accepted(one)] == []


def test_differences_are_detected() -> None:
    """Three differences: one parameter too many (a former bug), a number of another size, another structure."""
    (found,) = parse_declarations("API struct blocks *fl_new(unsigned granule_shift, const range *where,\n uint32_t at);\n").items()
    assert found == ("fl_new", ("struct blocks*", ["unsigned", "range*", "uint32_t"]))
    assert ctypes.c_uint64 not in list_accepted("uint32_t")
    assert ctypes.POINTER(CPiece) not in list_accepted("range*")
    assert ctypes.c_void_p not in list_accepted("uint64_t*")


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_the_fuzzer_calls_what_the_header_declares(variant: tuple[int, str]) -> None:
    """The fuzzer compiles for each word size and byte order. `make fuzz-guided` runs it."""
    words = (f"-DWORD={variant[0]}u", f"-DBIG={int(variant[1] == 'big')}")
    harness = Path(__file__).parents[1] / "fuzz" / "native.c"
    subprocess.run(["gcc", "-std=c11", "-Wall", "-Wextra", "-Werror", *words, "-fsyntax-only", harness], check=True)


def test_structures_have_the_same_layout(tmp_path: Path) -> None:
    """Sizes and offsets of fields, as the compiler computes them. Some fields have other names in Python; the order is the same."""
    fields = {
        "piece": ("address", "data", "length"),
        "range": ("start", "end"),
        "words": ("items", "count", "capacity"),
        "row_rules": tuple(field[0] for field in declarations.CRules._fields_),
        "row_columns": tuple(field[0] for field in declarations.CRowColumns._fields_),
        "bytes": ("data", "size"),
        "source": tuple(field[0] for field in declarations.CSource._fields_),
    }
    lines = [f'printf("{name} %zu", sizeof({name}));' for name in fields]
    for at, name in enumerate(fields):
        lines[at] += "".join(f'printf(" %zu", offsetof({name}, {field}));' for field in fields[name]) + 'puts("");'
    program, source = tmp_path / "layouts", tmp_path / "layouts.c"
    source.write_text('#include "rows.h"\n#include "dwarf.h"\n#include <stdio.h>\nint main(void) {' + "\n".join(lines) + "}\n")
    subprocess.run(["gcc", "-std=c11", f"-I{FOLDER}", "-o", program, source], check=True)
    said = {line.split()[0]: [*map(int, line.split()[1:])] for line in subprocess.check_output([program], text=True).splitlines()}
    for name in fields:
        structure = STRUCTURES.get(name) or STRUCTURES[f"struct {name}"]
        assert said[name] == [ctypes.sizeof(structure), *(getattr(structure, field[0]).offset for field in structure._fields_)], name
