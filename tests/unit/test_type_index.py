"""Types of debug information are compared with what the program prints about itself, and with a slow reader by pyelftools. The tests
cover all forms that compilers and tools write."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Literal

import graphs
import pytest
from elftools.elf.elffile import ELFFile
from type_oracle import read_types_slowly
from typed import check_facts, columns_of, differences, list_named, member_places, open_sources, read_file, variables
from variants import mark_matrix_except

from findleaks.debuginfo.local_variables import Local, LocalVariables, Place
from findleaks.debuginfo.lost_locations import add_lost_variables, has_lost_locations
from findleaks.debuginfo.program_types import merge_columns, place_types
from findleaks.debuginfo.type_cache import TypeCache
from findleaks.debuginfo.type_table import FieldKind, Flag, Kind, TypeTable
from findleaks.engine import load
from findleaks.engine.dwarf_sources import COLUMNS, Source
from findleaks.target.arch import X86_64
from findleaks.target.base import Module
from findleaks.types.erasure import find_managed
from findleaks.value_classes import fields

PROGRAMS = Path(__file__).parents[1] / "programs"

FORMS = {
    "gcc-2": "gcc -gdwarf-2 -gstrict-dwarf -O0",
    "gcc-3": "gcc -gdwarf-3 -O0",
    "gcc-4-O2": "gcc -gdwarf-4 -O2",
    "gcc-5": "gcc -gdwarf-5 -O0",
    "gcc-5-O2": "gcc -gdwarf-5 -O2",
    "gcc-64-bit": "gcc -gdwarf-5 -gdwarf64 -O2",
    "gcc-lto": "gcc -gdwarf-5 -O2 -flto",
    "gcc-32": "i686-linux-gnu-gcc -gdwarf-5 -O0 -static",
    "clang-2": "clang-19 -gdwarf-2 -O0",
    "clang-4-O2": "clang-19 -gdwarf-4 -O2",
    "clang-5-O2": "clang-19 -gdwarf-5 -O2",
    "zlib": "gcc -g -gz=zlib",
    "gnu-zlib": "gcc -gdwarf-4 -gz=zlib-gnu",
}
RUN_ALWAYS = ("gcc-2", "gcc-4-O2", "gcc-5", "gcc-lto", "gcc-32", "clang-5-O2", "zlib")


def build(folder: Path, form: str, name: str = "type_layouts.c") -> Path:
    """Compile a program in the current folder: .dwo files go there."""
    program = folder / "types"
    subprocess.run([*form.split(), "-no-pie", "-o", program, PROGRAMS / name], check=True, cwd=folder)
    return program


def facts(program: Path) -> str:
    return subprocess.check_output([program], text=True)


@pytest.mark.parametrize("form", mark_matrix_except(FORMS, *RUN_ALWAYS))
def test_types_of_c_are_those_of_the_compiler(tmp_path: Path, form: str) -> None:
    program = build(tmp_path, form)
    table = read_file(program)
    assert check_facts(table, facts(program)) > 29
    if "i686" not in form:  # a static program also has libc's assembly code, of which pyelftools makes units
        assert differences(read_types_slowly(str(program)), table) == []
    assert list_named(read_file(program, pure=True)) == list_named(table)


def test_a_type_is_more_than_its_members(tmp_path: Path) -> None:
    """Two typedefs of equal unnamed structs, unions in structs, bit fields, arrays of arrays, flexible arrays, pointers to functions,
    declarations without a definition."""
    table = read_file(build(tmp_path, "gcc -g"))
    (point,), (vector,), (node,), (opaque,) = (table.find(name) for name in ("point", "vector", "node", "opaque"))
    assert point != vector
    assert table.flags[point] & Flag.NAMED_BY_TYPEDEF
    assert table.flags[opaque] & Flag.DECLARATION
    assert (table.name(node), table.expression(node), table.expression(point)) == ("node", "struct node", "point")
    by_name = {one.name: one for one in table.fields_of(node)}
    written = {name: table.name(one.type) for name, one in by_name.items()}
    assert written["back"] == "node **"
    assert written["name"] == "const char *const"
    assert written["handlers"] == "handler [4]"
    assert written["grid"] == "point [2][3]"
    assert written["children"] == "node *[]"
    assert table.kinds[by_name[""].type] == Kind.UNION
    grid, children = table.bare(by_name["grid"].type), by_name["children"].type
    assert (table.counts[grid], table.counts[table.targets[grid]], table.counts[children]) == (2, 3, 0)
    bits = {name: (by_name[name].offset * 8 + by_name[name].first_bit, by_name[name].bits) for name in ("flag", "level", "wide")}
    assert bits == {"flag": (256, 3), "level": (259, 7), "wide": (266, 40)}
    assert variables(table)["table"] == "outer_type *[7]"
    assert variables(table)["make_node::made"] == "outer"
    handler = table.bare(table.targets[table.bare(by_name["handlers"].type)])
    assert (table.kinds[handler], table.name(handler)) == (Kind.POINTER, "int (*)(void)")


SPLIT_FORMS = {
    "gcc-5": "gcc -gdwarf-5 -gsplit-dwarf",
    "gcc-5-O2": "gcc -gdwarf-5 -O2 -gsplit-dwarf",
    "gcc-4-O2": "gcc -gdwarf-4 -O2 -gsplit-dwarf",
    "gcc-types-5": "gcc -gdwarf-5 -gsplit-dwarf -fdebug-types-section",
    "gcc-types-4": "gcc -gdwarf-4 -gsplit-dwarf -fdebug-types-section",
    "clang-5": "clang-19 -gdwarf-5 -gsplit-dwarf",
}


@pytest.mark.parametrize("form", mark_matrix_except(SPLIT_FORMS, "gcc-5", "gcc-types-4"))
def test_split_types_are_those_in_one_file(tmp_path: Path, form: str) -> None:
    """Types are read from .dwo files, and from a package of them."""
    (tmp_path / "whole").mkdir()
    whole = read_file(build(tmp_path / "whole", form.replace("-gsplit-dwarf", "")))
    program = build(tmp_path, form)
    split = read_file(program)
    assert list_named(split) == list_named(whole)
    assert variables(split) == variables(whole)
    assert check_facts(split, without_vector(facts(program))) > 29
    if form in (SPLIT_FORMS["gcc-5"], SPLIT_FORMS["gcc-5-O2"]):
        return  # packages of DWARF 5 need llvm-dwp, which the matrix has; that of LLVM 14 does not end with range lists
    package(program, "dwp" if "dwarf-4" in form else "llvm-dwp")
    assert not list(tmp_path.glob("*.dwo"))
    assert list_named(read_file(program)) == list_named(whole)


def test_variables_without_an_address_are_those_of_symbols(tmp_path: Path) -> None:
    """With -flto and -gsplit-dwarf, gcc's debug information has no addresses of variables. findleaks does not add variables without a
    symbol."""
    form = "gcc -gdwarf-5 -O1 -flto"
    (tmp_path / "whole").mkdir()
    whole = read_file(build(tmp_path / "whole", form))
    program = build(tmp_path, f"{form} -gsplit-dwarf")
    sources = open_sources(program)
    assert has_lost_locations(sources)
    columns = add_lost_variables(sources, columns_of(program))
    assert columns is not None
    known, wanted = variables(TypeTable.of(8, columns)), variables(whole)
    assert {name: wanted.get(name) for name in known if name} == {name: text for name, text in known.items() if name}
    assert {"table", "origin", "values", "thread_count", "thread_node"} & wanted.keys() <= known.keys()
    subprocess.run(["objcopy", "--wildcard", "--redefine-sym", "table=other", program], check=True)
    columns = add_lost_variables(open_sources(program), columns_of(program))
    assert columns is not None and "table" not in variables(TypeTable.of(8, columns))
    subprocess.run(["strip", "--keep-section=.debug*", "-s", program], check=True)
    assert add_lost_variables(open_sources(program), columns_of(program)) is None


def without_vector(text: str) -> str:
    """Return the facts except those of `vector`, which has the signature of `point` in a type unit."""
    return "".join(line + "\n" for line in text.splitlines() if "\tvector\t" not in line and "velocity" not in line)


def package(program: Path, name: str) -> None:
    """Put the .dwo files of a program into a .dwp file. The program of binutils supports DWARF 4, and that of LLVM also DWARF 5."""
    tool = shutil.which(name)
    assert tool is not None, f"{name} is part of binutils or llvm"
    subprocess.run([tool, "-e", program, "-o", f"{program}.dwp"], check=True)
    for path in program.parent.glob("*.dwo"):
        path.unlink()


@pytest.mark.parametrize("form", ["-gdwarf-4", pytest.param("-gdwarf-5", marks=pytest.mark.matrix)])
def test_type_units_are_those_in_one_unit(tmp_path: Path, form: str) -> None:
    program = build(tmp_path, f"gcc {form} -fdebug-types-section")
    table = read_file(program)
    assert check_facts(table, without_vector(facts(program))) > 29
    whole = list_named(read_file(build(tmp_path, f"gcc {form}")))
    del whole["STRUCT", "vector"]
    assert list_named(table) == whole


def test_types_in_a_supplementary_file(tmp_path: Path) -> None:
    """dwz moves what two programs share to a third file."""
    program = build(tmp_path, "gcc -g")
    whole = read_file(program)
    shutil.copy(program, tmp_path / "other")
    subprocess.run(["dwz", "-m", "common.debug", "types", "other"], check=True, cwd=tmp_path)
    moved = read_file(program)
    assert list_named(moved) == list_named(whole)
    assert variables(moved) == variables(whole)
    assert check_facts(moved, facts(program)) > 29


def test_types_of_cpp_are_those_of_the_compiler(tmp_path: Path) -> None:
    program = build(tmp_path, "g++ -std=c++17 -g", "type_layouts.cpp")
    table = read_file(program)
    assert check_facts(table, facts(program)) >= 20
    assert differences(read_types_slowly(str(program)), table) == []
    by_name = {table.name(number): number for number in range(len(table)) if table.kinds[number] == Kind.STRUCT}
    assert all(table.flags[by_name[f"app::{name}"]] & Flag.POLYMORPHIC for name in ("Base", "Derived", "Virtual"))
    assert not table.flags[by_name["app::Plain"]] & Flag.POLYMORPHIC
    box = by_name["app::Box<std::vector<long, std::allocator<long> >, 3>"]
    assert table.name(table.bare(table.part(box, "value_type"))) == "std::vector<long, std::allocator<long> >"
    assert [(one.name, one.value) for one in table.parts_of(box) if one.name == "N"] == [("N", 3)]
    pairs = by_name["std::map<std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >, std::shared_ptr<app::Base>, "
                    "std::less<std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> > >, "
                    "std::allocator<std::pair<const std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >, "
                    "std::shared_ptr<app::Base> > > >"]  # fmt: skip
    assert table.name(table.bare(table.part(pairs, "mapped_type"))) == "std::shared_ptr<app::Base>"
    assert variables(table)["count::counted"] == "int"  # the definition of the function is outside of its class
    assert variables(table)["scratch"] == "std::vector<int, std::allocator<int> >"


def test_types_of_rust_are_those_of_the_compiler(tmp_path: Path) -> None:
    rustc = shutil.which("rustc")
    assert rustc is not None, "this test needs rustc: apt-get install cargo"
    program = tmp_path / "types"
    subprocess.run([rustc, "--edition=2021", "-g", PROGRAMS / "type_layouts.rs", "-o", program], check=True, capture_output=True)
    table = read_file(program)
    assert check_facts(table, facts(program)) > 12
    (shape,) = table.find("type_layouts::Shape")
    kinds = [one.kind for one in table.fields_of(shape)]
    assert kinds.count(FieldKind.DISCRIMINANT) == 1
    assert kinds.count(FieldKind.VARIANT) + kinds.count(FieldKind.OTHER_VARIANT) == 4
    assert variables(table)["type_layouts::COUNT"] == "core::sync::atomic::AtomicUsize"


@pytest.mark.parametrize(("target", "word"), [("s390x-linux-gnu", 8), pytest.param("mips-linux-gnu", 4, marks=pytest.mark.matrix)])
def test_types_of_big_endian_targets(tmp_path: Path, target: str, word: int) -> None:
    """An object file of the other byte order. pyelftools applies its relocations."""
    text = (PROGRAMS / "type_layouts.c").read_text()
    # pyelftools does not support the relocations of thread-local variables
    text = text[text.index("typedef struct") : text.index("#define SIZE")].replace("_Thread_local ", "")
    (tmp_path / "types.c").write_text(f"typedef unsigned long size_t;\n#define NULL 0\nvoid *calloc(size_t, size_t);\n{text}")
    tables = []
    for of, name in (("x86_64-linux-gnu", "little"), (target, "big")):
        made = tmp_path / f"{name}.o"
        subprocess.run(
            ["clang-19", f"--target={of}", "-gdwarf-4", "-fno-asynchronous-unwind-tables", "-c", "-o", made, tmp_path / "types.c"],
            check=True,
        )
        tables.append(read_object(made, word if name == "big" else 8, "big" if name == "big" else "little"))
    little, big = tables
    names = {name for name, kind in zip(map(big.name, range(len(big))), big.kinds) if kind in (Kind.STRUCT, Kind.UNION)}
    assert {"point", "node", "outer", "inner", "value", "opaque"} <= names
    (node,) = big.find("node")
    wide = {one.name: one for one in big.fields_of(node)}["wide"]
    if word == 8:
        assert member_places(little, little.find("node")[0]) == member_places(big, node)
        assert (wide.offset * 8 + wide.first_bit, wide.bits) == (32 * 8 + 10, 40)
    else:
        assert big.sizes[node] == little.sizes[little.find("node")[0]] - 8 * 4  # seven pointers and a long, each 4 bytes shorter
        assert all(big.sizes[number] == 4 for number, kind in enumerate(big.kinds) if kind == Kind.POINTER)


def read_object(path: Path, word: int, order: Literal["little", "big"]) -> TypeTable:
    """Return the types of an object file. Check that both engines agree."""
    with path.open("rb") as file:
        info = ELFFile(file).get_dwarf_info(relocate_dwarf_sections=True)
        given = {name: getattr(info, f"debug_{section}_sec") for name, section in OBJECT_SECTIONS.items()}
        source = Source(**{name: section.stream.getvalue() for name, section in given.items() if section is not None})
    made = []
    for engine in (graphs.native(X86_64._replace(word=word, byteorder=order)), graphs.pure(X86_64._replace(word=word, byteorder=order))):
        reader = engine.type_reader()
        reader.add(source)
        while reader.read(1 << 20) >= 0:
            pass
        while reader.find_origins(1 << 20):
            pass
        while reader.merge() < 1.0:
            pass
        assert not reader.incomplete
        made.append(TypeTable.of(word, reader.columns()))
    assert made[0] == made[1]
    return made[0]


OBJECT_SECTIONS = {"info": "info", "abbreviations": "abbrev", "strings": "str", "ranges": "ranges"}

MODULES = (
    """struct hidden; struct same { int a; struct hidden *h; } first; struct hidden *handle; static struct local { int x; } l1;
    int use1(void) { return l1.x; }""",
    """struct hidden { char name[8]; struct hidden *next; } object; struct same { int a; struct hidden *h; } second;
    static struct local { char *y; long z; } l2; long use2(void) { return l2.z; }""",
)


@pytest.mark.parametrize("pure", [False, True])
def test_modules_define_what_others_declare(tmp_path: Path, pure: bool) -> None:
    pairs = []
    for number, text in enumerate(MODULES):
        (tmp_path / "module.c").write_text(text)
        library = tmp_path / f"library{number}"
        subprocess.run(["gcc", "-g", "-shared", "-fPIC", "-o", library, tmp_path / "module.c"], check=True)
        start = 0x10000000 * (number + 1)
        pairs.append((Module(f"/{library.name}", start, start, start + 0x100000), read_file(library, pure)))
    columns = merge_columns([table for _, table in pairs], load.load(X86_64, pure).type_reader(), lambda part: None)
    cache = TypeCache({"XDG_CACHE_HOME": str(tmp_path)})
    cache.store("merged", columns)
    merged, loaded = (place_types([module for module, _ in pairs], one) for one in (columns, cache.load("merged")))
    assert merged == loaded
    table = merged.table
    assert [len(table.find(name)) for name in ("hidden", "same", "local")] == [1, 1, 2]
    found = {one.name: one for one in table.variables()}
    assert {name: one.address >> 28 for name, one in found.items()} == {"first": 1, "handle": 1, "l1": 1, "object": 2, "second": 2, "l2": 2}
    assert table.pointee(found["handle"].type) == found["object"].type
    assert found["first"].type == found["second"].type
    assert found["l1"].type != found["l2"].type
    for module, own in pairs:
        for one in own.variables():
            assert merged.numbers[module.start][one.type] == found[one.name].type


LOCALS = """
#include <stdio.h>
#include <stdlib.h>
struct item { struct item *next; long value; };
__attribute__((noinline)) void note(void) { printf("%#lx\\n", (long)__builtin_return_address(0)); }
__attribute__((noinline)) struct item *build(int count, const char *tag) {
    struct item *first = NULL, kept = {0, count};
    for (int at = 0; at < count; at++) {
        struct item *made = malloc(sizeof *made);
        made->next = first, made->value = at + (tag != 0);
        first = made;
        if (at == 0) {
            printf("%ld %ld\\n", (long)((char *)&kept - (char *)__builtin_dwarf_cfa()), (long)kept.value);
            note();
        }
    }
    return first;
}
int main(int argc, char **argv) { return build(argc, argv[0])->value == 7; }
"""


@pytest.mark.parametrize("options", ["-O0 -gdwarf-4", "-O2 -gdwarf-4", "-O2 -gdwarf-5", "-O2 -g -flto"])
def test_local_variables(tmp_path: Path, options: str) -> None:
    """The offsets from the frame are those that the program prints. Variables in location lists have their offset at the call."""
    (tmp_path / "locals.c").write_text(LOCALS)
    program = tmp_path / "locals"
    subprocess.run(["gcc", *options.split(), "-no-pie", "-o", program, tmp_path / "locals.c"], check=True)
    first, call = facts(program).splitlines()
    table = read_file(program)
    found = {one.name: one for one in find_locals(program, table, int(call, 0) - 1)}
    assert {"kept", "made", "first", "at", "count", "tag"} <= set(found)
    assert [table.name(found[name].type) for name in ("made", "tag", "at", "kept")] == ["item *", "const char *", "int", "item"]
    if "-O0" in options:
        assert (found["kept"].place, found["kept"].offset) == (Place.CFA, int(first.split()[0]))
    assert find_locals(program, table, 0x10) == ()


def find_locals(program: Path, table: TypeTable, address: int) -> tuple[Local, ...]:
    return tuple(LocalVariables(open_sources(program), table).at(address))


MANAGERS = """
#include <functional>
struct Call { long words[5]; void operator()() const; };
void Call::operator()() const {}
std::function<void()> made;
std::move_only_function<void()> moved;
int main() { made = Call{}; moved = Call{}; return !made; }
"""


@pytest.mark.parametrize("options", ["-O0", "-O2 -gdwarf-4", "-O2 -flto"])
def test_managers_of_wrappers(tmp_path: Path, options: str) -> None:
    """The manager of a type-erased wrapper, found by its address, names the type of the wrapper's value."""
    (tmp_path / "managers.cpp").write_text(MANAGERS)
    program = tmp_path / "managers"
    subprocess.run(["g++", "-std=c++23", "-g", *options.split(), "-o", program, tmp_path / "managers.cpp"], check=True)
    table, pure = read_file(program), read_file(program, pure=True)
    assert (table.keys, table.key_types) == (pure.keys, pure.key_types)
    known = LocalVariables(open_sources(program), table)
    found = [types for start in table.function_starts if (types := known.manager_types(start))]
    values = {table.text(table.names[types[0]]).partition("<")[0]: table.name(find_managed(table, types).value) for types in found}
    values.pop("std::_Function_base::_Base_manager", None)  # it is inlined in optimized programs
    assert values == {"std::_Function_handler": "Call", "std::_Mofunc_base": "Call"}
    assert not known.manager_types(table.function_starts[0] + 1)


def test_the_columns_are_those_of_the_table() -> None:
    """The engines use numbers of columns, and the table their names."""
    names = [one.name for one in fields(TypeTable)][2:]
    made = TypeTable(8)
    assert len(names) == len(COLUMNS) - 1
    assert [getattr(made, name).typecode for name in names] == list(COLUMNS[1:])
