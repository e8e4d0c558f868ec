"""Compare the types that findleaks finds by debug information with the types that programs print for each of their blocks."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import commandline
import libraries_cpp
import pytest
from typed_programs import COMPILERS, LIBCXX, PROGRAMS, Figures, check, check_wrong, measure
from variants import mark_matrix_except

import cores

LEVELS = ("-O0", "-O2", "-O2 -flto")
RUST = ("-Copt-level=0", "-O", "-O -Clto")


def test_c(tmp_path: Path) -> None:
    check(measure("typed_truth.c", tmp_path, 20_000, 1, "-O2"))


def test_cpp(tmp_path: Path) -> None:
    check(measure("typed_truth.cpp", tmp_path, 6_000, 1, "-O2"))


@pytest.mark.parametrize("flags", mark_matrix_except(["-O2", "-O2 -DMAGIC=2", "-O2 -DMAGIC=1"], "-O2"))
def test_headers(flags: str, tmp_path: Path) -> None:
    """Types begin after the header of the program's function for allocation."""
    figures = measure("typed_headers.c", tmp_path, 3_000, 1, *flags.split())
    check(figures)
    assert not figures.wrong


@pytest.mark.parametrize(
    ("count", "flags"), [(300, "-O2"), *(pytest.param(2000, flags, marks=pytest.mark.matrix) for flags in ("-O0", "-O2 -flto"))]
)
def test_packed(count: int, flags: str, tmp_path: Path) -> None:
    """Truncated structs, and several objects in one block, have types."""
    check(measure("typed_packed.c", tmp_path, count, 1, *flags.split()))


@pytest.mark.parametrize("flags", mark_matrix_except(LEVELS, "-O2"))
def test_buckets(flags: str, tmp_path: Path) -> None:
    """An array of pointers to parts of blocks gets a type, and gives a type to the parts. Pointers to numbers give the numbers no type."""
    pages = 300
    figures = measure("typed_buckets.c", tmp_path, pages, 1, *flags.split())
    assert not figures.wrong, figures.wrong[:12]
    assert figures.held["none"] <= pages + 1, figures.held
    assert sum(figures.held.values()) >= 3 * pages


@pytest.mark.parametrize(
    ("accounts", "flags"), [(60, "-O2"), *(pytest.param(1000, flags, marks=pytest.mark.matrix) for flags in ("-O0", "-O2", "-O2 -flto"))]
)
def test_tails(accounts: int, flags: str, tmp_path: Path) -> None:
    """A block with a struct, followed by the arrays of the struct, has a type. Blocks to which only such arrays refer have types, too."""
    figures = measure("typed_tails.c", tmp_path, accounts, 1, *flags.split())
    check(figures)
    assert not figures.wrong


@pytest.mark.parametrize("flags", mark_matrix_except(LEVELS, "-O2"))
def test_kinds(flags: str, tmp_path: Path) -> None:
    """The objects that were first added to a list have the same type, but the other objects of the list do not get this type. Text does not
    get the type of a struct, and a pointer to characters does not fit an array of pointers."""
    figures = measure("typed_kinds.c", tmp_path, 250, 1, *flags.split())
    check(figures)
    assert not figures.wrong


@pytest.mark.matrix
@pytest.mark.parametrize("flags", mark_matrix_except(LEVELS, "-O2"))
@pytest.mark.parametrize("source", ["typed_reused.c", "typed_stale.c"])
def test_reused(source: str, flags: str, tmp_path: Path) -> None:
    """Blocks that are larger than the size class of their type, with words of their former content, lead to no wrong type. In
    typed_stale.c, these words refer to leaked blocks of another type, which pointers of the claimed type fit, too."""
    figures = measure(source, tmp_path, 100, 1, *flags.split())
    check(figures)
    assert not figures.wrong, figures.wrong[:12]
    assert figures.held["sure right"] > 0.8 * sum(figures.held.values()), figures.held


@pytest.mark.parametrize("flags", mark_matrix_except(LEVELS, "-O2"))
def test_derived(flags: str, tmp_path: Path) -> None:
    """A base struct whose block is as large as a derived struct does not get the derived type as a certain one."""
    figures = measure("typed_derived.c", tmp_path, 200, 1, *flags.split())
    check(figures)
    assert not figures.wrong, figures.wrong[:12]


@pytest.mark.parametrize(
    ("compiler", "flags"), [("clang-19", "-O2"), *(pytest.param("gcc", flags, marks=pytest.mark.matrix) for flags in LEVELS)]
)
def test_rows(compiler: str, flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrays with former content in their last elements have types. clang splits the static struct that refers to all blocks."""
    monkeypatch.setitem(COMPILERS, ".c", compiler)
    figures = measure("typed_rows.c", tmp_path, 100, 1, *flags.split())
    check(figures)
    assert not figures.wrong, figures.wrong[:12]
    assert figures.held["none"] + figures.leaked["none"] <= 20, (figures.held, figures.leaked)


@pytest.mark.parametrize(
    ("compiler", "level"),
    [
        ("clang++-19", "-O0"),
        *(pytest.param("g++", level, marks=pytest.mark.matrix) for level in ("-O0", "-O2")),
    ],
)
def test_frames(compiler: str, level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame of a coroutine, which begins with the addresses of two functions, is not a struct of pointers to characters."""
    monkeypatch.setitem(COMPILERS, ".cpp", compiler)
    figures = measure("typed_frames.cpp", tmp_path, 40, 1, level, "-std=c++20")
    check(figures)
    assert not figures.wrong, figures.wrong[:12]


@pytest.mark.parametrize("flags", mark_matrix_except(LEVELS, "-O2"))
def test_owners(flags: str, tmp_path: Path) -> None:
    """Leaked owners of maps, lists and deques have types, although the nodes refer back to them, and deques have unused elements."""
    figures = measure("typed_owners.cpp", tmp_path, 200, 1, "-std=c++17", *flags.split())
    check(figures)
    assert not figures.wrong


@pytest.mark.matrix
@pytest.mark.parametrize("flags", mark_matrix_except(RUST, "-O"))
def test_lists(flags: str, tmp_path: Path) -> None:
    """Types that are only storage for a node do not make the type of the node ambiguous."""
    figures = measure("typed_lists.rs", tmp_path, 500, 1, "--edition=2021", *flags.split())
    assert not figures.wrong
    assert not figures.held["none"], figures.held
    assert figures.part(figures.held, "sure right") > 0.5, figures.held


@pytest.mark.parametrize(
    ("caches", "flags"), [(60, "-O2"), *(pytest.param(1000, flags, marks=pytest.mark.matrix) for flags in ("-O0", "-O2", "-O2 -flto"))]
)
def test_storage(caches: int, flags: str, tmp_path: Path) -> None:
    """Blocks that own a `new T[n]`, or values in nodes of containers, have types. So have all blocks that are reachable from them."""
    figures = measure("typed_storage.cpp", tmp_path, caches, 1, "-std=c++17", *flags.split())
    check(figures)
    assert not figures.wrong, figures.wrong[:12]


@pytest.mark.parametrize("flags", mark_matrix_except(("-O2 -std=c++23", "-O0 -std=c++17"), "-O2 -std=c++23"))
def test_wrappers(flags: str, tmp_path: Path) -> None:
    """The manager of a type-erased wrapper names the type of its value. Blocks to which a vector in a local variable refers have types."""
    check_wrappers(measure("typed_wrappers.cpp", tmp_path, 100, 1, *flags.split()))


def check_wrappers(figures: Figures, sure: float = 0.9) -> None:
    """Check that at least this part of the reachable blocks has a certain type. The types of 8 % of them are inferred, because only a local
    variable of main refers to them."""
    check(figures)
    assert not figures.wrong, figures.wrong[:12]
    # The first elements of a boost::container::small_vector are in bytes of the vector itself.
    assert figures.part(figures.held + figures.leaked, "none") < 0.025, (figures.held, figures.leaked)
    assert figures.part(figures.held, "sure right") > sure, figures.held


@pytest.mark.matrix
def test_wrappers_of_libcxx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With libc++, whose std::make_shared has its own storage, the same types are found. The types of values in its std::function are
    inferred."""
    monkeypatch.setitem(COMPILERS, ".cpp", "clang++-19")
    check_wrappers(measure("typed_wrappers.cpp", tmp_path, 300, 1, *LIBCXX), sure=0.75)


@pytest.mark.matrix
@pytest.mark.parametrize("release", libraries_cpp.BOOST)
def test_wrappers_and_boost(release: str, tmp_path: Path) -> None:
    """Values in containers of Boost have types, too."""
    check_wrappers(measure("typed_wrappers.cpp", tmp_path, 200, 1, "-O1", "-std=c++17", *libraries_cpp.boost(release)))


@pytest.mark.parametrize("flags", mark_matrix_except(RUST, "-O"))
def test_queue(flags: str, tmp_path: Path) -> None:
    """Boxed closures, and boxed futures with further bounds, have the types of their vtables, also in an Option and in a queue."""
    figures = measure("typed_queue.rs", tmp_path, 100, 1, "--edition=2021", *flags.split())
    check(figures)
    assert not figures.wrong, figures.wrong[:12]
    assert figures.part(figures.held + figures.leaked, "none") < 0.01, (figures.held, figures.leaked)


@pytest.mark.matrix
@pytest.mark.parametrize(("users", "flags"), [(60, "-O"), *(pytest.param(1000, flags, marks=pytest.mark.matrix) for flags in RUST)])
def test_dangling(users: int, flags: str, tmp_path: Path) -> None:
    """Structs with an empty vector, or with a `Weak` that refers to no object, have types."""
    figures = measure("typed_dangling.rs", tmp_path, users, 1, "--edition=2021", *flags.split())
    check(figures)
    assert figures.part(figures.held + figures.leaked, "none") < 0.02
    assert not figures.wrong, figures.wrong[:12]


@pytest.mark.matrix
@pytest.mark.parametrize("flags", LEVELS)
@pytest.mark.parametrize(
    ("program", "count"),
    [
        # Classes of the standard library that only store a value do not make the type of the value ambiguous.
        ("typed_graph.cpp", 300),
        # The number before the elements of `new T[n]` distinguishes an array from a class with a member T.
        ("typed_variants.cpp", 1000),
    ],
)
def test_classes(program: str, count: int, flags: str, tmp_path: Path) -> None:
    figures = measure(program, tmp_path, count, 1, "-std=c++17", *flags.split())
    check(figures)
    assert not figures.wrong


def test_header_in_whatis(tmp_path: Path) -> None:
    """`whatis` lists members at their offsets in the block. The start of a block with a header can have a hint."""
    program = tmp_path / "typed_headers"
    subprocess.run(["gcc", "-g", "-o", program, PROGRAMS / "typed_headers.c"], check=True)
    with cores.Running([str(program), "200", "1"], tmp_path / "run") as running:
        table = next(line.split(" ", 2)[0] for line in running.output.splitlines() if line.endswith("reachable struct table"))
        words = ["--pid", str(running.pid), "--debug-types"]
        environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
        text = commandline.run(["whatis", f"0x{table}", *words], environment).stdout
        hinted = commandline.run(["whatis", f"0x{table}", "--json", "--type", f"0x{table}=struct table", *words], environment).stdout
    assert "struct table after a header of 8 bytes" in text
    assert re.search(r"^  \+8 +next ", text, re.M) and re.search(r"^  \+56 +release +0x\w+ → release$", text, re.M), text
    assert json.loads(hinted)["answers"][0]["block"]["type_from"] == "hint"


@pytest.mark.parametrize(("users", "flags"), [(300, "-O"), *(pytest.param(2000, flags, marks=pytest.mark.matrix) for flags in RUST)])
def test_rust(users: int, flags: str, tmp_path: Path) -> None:
    check(measure("typed_truth.rs", tmp_path, users, 1, "--edition=2021", *flags.split()))


@pytest.mark.matrix
@pytest.mark.parametrize("flags", mark_matrix_except(RUST, "-O"))
def test_stale_words(flags: str, tmp_path: Path) -> None:
    """Stale addresses do not give a struct a wrong type, such as an array of another size, or an enum with another discriminant. Large
    hash tables have types."""
    figures = measure("typed_stale.rs", tmp_path, 500, 1, "--edition=2021", *flags.split())
    assert not figures.wrong, figures.wrong[:12]
    assert figures.part(figures.held, "sure right") > 0.9, figures.held
    assert figures.part(figures.leaked, "inferred right", "sure right") > 0.5, figures.leaked


@pytest.mark.parametrize("flags", mark_matrix_except(RUST, "-O"))
def test_enums(flags: str, tmp_path: Path) -> None:
    """The vtable selects the type of a trait object in a variant, and the discriminant selects the types of the other pointers."""
    figures = measure("typed_enums.rs", tmp_path, 150, 1, "--edition=2021", *flags.split())
    assert not figures.wrong, figures.wrong[:12]
    assert figures.part(figures.held, "none") < 0.01, figures.held
    assert figures.part(figures.held, "sure right") > 0.75, figures.held
    assert figures.part(figures.leaked, "none") < 0.2, figures.leaked


@pytest.mark.parametrize("flags", mark_matrix_except(RUST, "-O"))
def test_niches(flags: str, tmp_path: Path) -> None:
    """Impossible capacities of a vector are discriminants: they select the types of the boxes in the other variants."""
    figures = measure("typed_niches.rs", tmp_path, 300, 1, "--edition=2021", *flags.split())
    assert figures.held["sure right"] == sum(figures.held.values()), (figures.held, figures.wrong[:12])


def test_objects_with_the_table_of_their_kind(tmp_path: Path) -> None:
    """A pointer to a variable of the declared type is evidence for the type of a leaked block, and one to another variable is not."""
    figures = measure("typed_variables.c", tmp_path, 60, 1, "-O1", "-Wall", "-Wextra", "-Werror")
    assert not figures.wrong, figures.wrong[:12]
    assert figures.leaked["none"] <= 60 and figures.leaked["inferred right"] >= 59, figures.leaked


@pytest.mark.parametrize("flags", mark_matrix_except(RUST, "-O"))
def test_lost_cycles_of_counted_boxes(flags: str, tmp_path: Path) -> None:
    """Boxes of Rc and Arc have types though only their own cycle refers to them. Numbers that resemble such a box have none."""
    figures = measure("typed_cycles.rs", tmp_path, 50, 1, "--edition=2021", *flags.split())
    assert not figures.wrong, figures.wrong[:12]
    # A stale word may refer to the last blocks.
    assert figures.leaked["none"] <= 2 * 50 and figures.leaked["inferred right"] >= 7 * 49, figures.leaked


@pytest.mark.parametrize("flags", mark_matrix_except(LEVELS, "-O2"))
def test_slots(flags: str, tmp_path: Path) -> None:
    """A table of structs with void pointers is an array, and its values have types. A block with a list link is not an array."""
    figures = measure("typed_slots.c", tmp_path, 120, 1, *flags.split())
    assert not figures.wrong, figures.wrong[:12]
    assert figures.part(figures.held, "none") < 0.01, figures.held
    assert figures.part(figures.leaked, "none") < 0.2, figures.leaked


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("units", "flags"), [(20, "-O2"), *(pytest.param(150, flags, marks=pytest.mark.matrix) for flags in ("-O0", "-O2", "-O2 -flto"))]
)
def test_flexible_nodes(units: int, flags: str, tmp_path: Path) -> None:
    """A list link does not distinguish a struct of this size from one that ends with an array. Because of void pointers, unions, and short
    text in a union, a few inferred types are wrong. No certain type is wrong."""
    figures = measure("typed_compiler.c", tmp_path, units, 1, *flags.split())
    check(figures)
    check_wrong(figures, 0.01)


@pytest.mark.parametrize(
    ("rooms", "flags"),
    [
        (40, "-O2 -std=c++20"),
        *(pytest.param(400, f"{flags} -std=c++17", marks=pytest.mark.matrix) for flags in ("-O0", "-O2", "-O2 -flto")),
    ],
)
def test_alternatives(rooms: int, flags: str, tmp_path: Path) -> None:
    """The index of a std::variant, and the flag of a std::optional, make the types of the values certain, also if the value is a vector."""
    figures = measure("typed_game.cpp", tmp_path, rooms, 1, *flags.split())
    check(figures)
    assert not figures.wrong, figures.wrong[:12]
    assert figures.part(figures.held, "sure right") > 0.9, figures.held


@pytest.mark.parametrize(
    ("clients", "flags"), [(100, "-O2"), *(pytest.param(2000, flags, marks=pytest.mark.matrix) for flags in ("-O0", "-O2", "-O2 -flto"))]
)
def test_rivals(clients: int, flags: str, tmp_path: Path) -> None:
    """No reachable block has the types of one third of the leaked blocks. Such a block gets its type if no other type fits. It gets no type
    if a type with reachable blocks fits, too. Blocks that are an array of two structs, or a struct with two members, get no type."""
    figures = measure("typed_daemon.c", tmp_path, clients, 1, *flags.split())
    assert not figures.wrong, figures.wrong[:12]
    assert figures.part(figures.held, "none") < 0.05, figures.held
    assert figures.part(figures.leaked, "none") < 0.3, figures.leaked


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("volumes", "flags"), [(20, "-O2"), *(pytest.param(1000, flags, marks=pytest.mark.matrix) for flags in ("-O0", "-O2", "-O2 -flto"))]
)
def test_links(volumes: int, flags: str, tmp_path: Path) -> None:
    """A list link is not taken for an array of pointers. The number in a node of a tree may look like the address of its parent."""
    figures = measure("typed_kernel.c", tmp_path, volumes, 1, *flags.split())
    check(figures)
    every = figures.held + figures.leaked
    # A table with one pointer, to its first element, is an array because the other tables are.
    assert not figures.wrong, figures.wrong[:12]
    assert every["none"] <= 0.01 * sum(every.values()), every


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("modules", "flags"), [(20, "-O2"), *(pytest.param(200, flags, marks=pytest.mark.matrix) for flags in ("-O0", "-O2", "-O2 -flto"))]
)
def test_kinds_of_objects(modules: int, flags: str, tmp_path: Path) -> None:
    """Objects have their kind in their first byte, before other flags. Text at the end of a struct is not taken for a number of another
    struct."""
    figures = measure("typed_script.c", tmp_path, modules, 1, *flags.split())
    check(figures)
    check_wrong(figures, 0.01)


@pytest.mark.matrix
def test_a_struct_like_an_array(tmp_path: Path) -> None:
    """Leaked structs with two members are not taken for arrays of two such members, which are reachable, if no such struct is reachable."""
    figures = measure("typed_pairs.cpp", tmp_path, 200, 1, "-O1")
    assert not figures.wrong, figures.wrong[:12]
    assert (figures.held["sure right"], figures.leaked["none"]) == (400, 200), figures


@pytest.mark.parametrize("flags", mark_matrix_except(RUST, "-O"))
def test_variants_with_buffers(flags: str, tmp_path: Path) -> None:
    """A word of an enum refers to the buffer of a container or to a struct. All of the struct is in use."""
    figures = measure("typed_variants.rs", tmp_path, 300, 1, "--edition=2021", *flags.split())
    assert not figures.wrong, figures.wrong[:12]
    assert figures.part(figures.held, "none") < 0.02, figures.held


@pytest.mark.matrix
@pytest.mark.parametrize("flags", RUST)
def test_stale_variants(flags: str, tmp_path: Path) -> None:
    """A stale word of an enum does not make a large block a value of a small type. Uninitialised blocks may get a wrong inferred type.
    An array of boxes is not an array of optional boxes, which are links of a list."""
    figures = measure("typed_pipeline.rs", tmp_path, 300, 1, "--edition=2021", *flags.split())
    check(figures)
    every = figures.held + figures.leaked
    assert every["none"] <= 0.03 * sum(every.values()), every
    check_wrong(figures, 0.02)


def test_unions(tmp_path: Path) -> None:
    """A pointer in a union does not give a block a type that is only declared, because the size of this type is unknown."""
    figures = measure("typed_unions.c", tmp_path, 40, 1, "-O1")
    assert not figures.wrong, figures.wrong[:12]
    assert figures.held["sure right"] == 40 and figures.held["none"] == 40, figures.held


@pytest.mark.matrix
@pytest.mark.parametrize("flags", ["-O0", "-O2", "-O2 -flto"])
@pytest.mark.parametrize("source", ["typed_truth.c", "typed_truth.cpp"])
def test_many(source: str, flags: str, tmp_path: Path) -> None:
    check(measure(source, tmp_path, 100_000, 7, *flags.split()))


@pytest.mark.matrix
@pytest.mark.parametrize("flags", ["-O2", "-O2 -flto"])
@pytest.mark.parametrize("source", ["typed_cache.c", "typed_objects.c", "typed_shapes.cpp"])
def test_few_types_are_wrong(source: str, flags: str, tmp_path: Path) -> None:
    """In these programs, not all blocks get a type. Nearly all types that blocks get are right."""
    figures = measure(source, tmp_path, 3000, 7, *flags.split())
    every = figures.held + figures.leaked
    sure, inferred = every["sure right"], every["inferred right"]
    assert sure > 0.15 * sum(every.values()), every
    assert sure + inferred > 0.5 * sum(every.values()), every
    assert every["sure wrong"] <= 0.005 * sure, figures.wrong[:12]
    assert every["inferred wrong"] <= 0.05 * inferred, figures.wrong[:12]


def test_without_debug_information(tmp_path: Path) -> None:
    """Without debug information, only the first word of a block determines its type."""
    figures = measure("typed_truth.c", tmp_path, 1_000, 1, "-O2", "-s")
    assert set(figures.sources) <= {"", "pattern"}, figures.wrong[:12]
