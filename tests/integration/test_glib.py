"""GObjects by type, their leaks and who retains them, and GLib's containers: numbers are those of the program."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import building
import debian
import glibs
import pytest
from debuggers import findleaks, gdb, lldb, objects, run_cli, run_json

import cores

TABLE, LEAKED, CYCLES, HANDLED, OWN, TIMEOUTS, VARIANTS, EACH, DESTROYED, BELOW = 300, 120, 40, 150, 30, 60, 80, 500, 50, 35
COUNTS = (TABLE, LEAKED, CYCLES, HANDLED, OWN, TIMEOUTS, VARIANTS, EACH, DESTROYED, BELOW)


def build(folder: Path) -> Path:
    return build_with(folder, "gobject_program.c", "gobject-2.0")


def build_with(folder: Path, source: str, library: str) -> Path:
    flags = subprocess.run(["pkg-config", "--cflags", "--libs", library], check=True, capture_output=True, text=True).stdout.split()
    return building.compile_program(folder, source, "-O1", *flags)


program = building.by(build)
running = building.running(*COUNTS)


@pytest.fixture(scope="module")
def core(running: cores.Running) -> str:
    return str(running.gcore())


@pytest.fixture(params=["live", "core"])
def where(request: pytest.FixtureRequest, running: cores.Running, core: str) -> list[str]:
    return ["--pid", str(running.pid)] if request.param == "live" else [core]


@pytest.mark.matrix
def test_glib_284(program: Path, tmp_path: Path) -> None:
    """GLib 2.84 has no slices, and other type nodes and main contexts."""
    folder = debian.cache() / "glib-2.84"
    debian.unpack_packages("trixie", ["libglib2.0-0t64"], folder, {}, dependencies=True)
    libraries = folder / "root/usr/lib/x86_64-linux-gnu"
    launcher = [str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries)]
    check_handlers(tmp_path, launcher)
    with cores.Running([*launcher, str(program), *map(str, COUNTS)], tmp_path / "run") as made:
        where = ["--pid", str(made.pid)]
        assert run_json("runtime", *where)["runtimes"][0]["version"].startswith("2.84.")
        test_types(where)
        test_leaks(where)


@pytest.mark.matrix
@pytest.mark.parametrize("version", glibs.VERSIONS)
def test_older_versions(version: str, program: Path, tmp_path: Path) -> None:
    """findleaks finds the same types in older versions of GLib, which allocate many objects with GSlice."""
    with cores.Running([str(program), *map(str, COUNTS)], tmp_path / "run", glibs.environment(version)) as made:
        where = ["--pid", str(made.pid)]
        assert run_json("runtime", *where)["runtimes"][0]["version"].startswith(f"{version}.")
        test_types(where)
        test_leaks(where)


def test_types(where: list[str]) -> None:
    """`runtime` counts instances, variants, closures, handlers and sources."""
    (one,) = run_json("runtime", "--limit", "0", *where)["runtimes"]
    types = {row["name"]: row["objects"] for row in one["types"]}
    sessions = 1 + TABLE + LEAKED + 2 * CYCLES + HANDLED + OWN + TIMEOUTS + BELOW
    wanted = {
        "AppSession": sessions,
        "AppCache": 1,
        "GVariant (si)": VARIANTS,
        "signal handler of AppSession::closed": HANDLED + OWN + BELOW,
        "GClosure of on_closed": HANDLED + OWN + BELOW,
        "GSource of expired": TIMEOUTS,
        "GSource (destroyed)": DESTROYED,
        "GMainContext": 1,
    }
    assert {name: types.get(name) for name in wanted} == wanted


def test_leaks(where: list[str]) -> None:
    """`find` names leaked objects, and counts the missing calls of g_object_unref. Nothing else is leaked.

    Stale words after the private data of sources may refer to some destroyed sources, and stale words in blocks to a session that its own
    handler owns."""
    answer = run_json("find", "--kind", "definite", *where)
    groups = {group["type"]: group["blocks"] for group in answer["groups"]}
    assert 0.8 * DESTROYED < groups.pop("GSource (destroyed)") <= DESTROYED
    assert LEAKED + CYCLES + 0.8 * OWN < groups.pop("AppSession") <= LEAKED + CYCLES + OWN
    assert groups == {"GVariant (si)": VARIANTS}
    assert answer["trusted"]
    miscounted = {row["name"]: (row["objects"], row["excess"]) for row in answer["reference_counts"]["types"] if row["objects"]}
    assert miscounted["AppSession"] == (LEAKED, LEAKED) and miscounted["GVariant (si)"] == (VARIANTS, VARIANTS)


def test_missing_calls_are_named(core: str) -> None:
    """Instances and variants are released by different functions."""
    text = " ".join(run_cli("find", core).stdout.split())  # lines may be broken anywhere
    assert "a g_object_unref or g_variant_unref is missing" in text


def test_words_after_instances(tmp_path: Path) -> None:
    """If an instance ends before the last word of its block, this word does not count as a reference."""
    with cores.Running([str(build_with(tmp_path, "gobject_tails.c", "gobject-2.0"))], tmp_path / "run") as made:
        leaked, kept = map(int, made.output.split()[:2])
        (runtime,) = run_json("runtime", "--limit", "0", "--pid", str(made.pid))["runtimes"]
    types = {row["name"]: (row["objects"], row["leaked"]["blocks"]) for row in runtime["types"] if row["name"] in ("Large", "Small")}
    assert types == {"Large": (leaked, leaked), "Small": (kept, 0)}


def test_references_that_are_not_counted(tmp_path: Path) -> None:
    """An instance is leaked if only its own signal handlers, or the record of its weak references, refer to it. Stale words may refer to
    some of these instances. Instances that the program keeps are not reported."""
    with cores.Running([str(build_with(tmp_path, "gobject_weak.c", "gio-2.0"))], tmp_path / "run") as made:
        answer = run_json("find", "--limit", "0", "--pid", str(made.pid))
    (row,) = [row for row in answer["reference_counts"]["types"] if row["name"] == "GSimpleAction"]
    assert 2700 < row["objects"] <= 3000 and row["excess"] == row["objects"]
    forgotten = [one["blocks"] for one in answer["groups"] if one["type"] == "GSimpleAction" and one["kind"] == "definite"]
    assert 2700 < sum(forgotten) <= 3000


def test_handlers_of_leaked_instances(tmp_path: Path) -> None:
    """Signal handlers keep nothing in use if their instance is leaked."""
    check_handlers(tmp_path, [])


def check_handlers(folder: Path, launcher: Sequence[str]) -> None:
    """Check that an instance owns what its handlers own, and what the handlers of the owned instances own. Stale words may refer to some
    leaked instances."""
    program = build_with(folder, "gobject_handlers.c", "gobject-2.0")
    with cores.Running([*launcher, str(program), "100"], folder / "handlers") as made:
        where = ["--pid", str(made.pid)]
        lines = [json.loads(line) for line in findleaks("blocks", "--limit", "0", "--json", *where).splitlines()]
        (row,) = run_json("find", *where)["reference_counts"]["types"]
        kinds = {int(line["address"], 16): line["kind"] for line in lines if "address" in line}
        wanted = [line.split() for line in made.output.splitlines() if line.startswith(("lost ", "kept "))]
        addresses = {sort: (1 << 64) - 1 - int(address, 16) for _, sort, address in wanted}
        steps = run_json("path", hex(addresses["owned-by-these"]), *where)["path"]
    found = Counter((state, sort, kinds[(1 << 64) - 1 - int(address, 16)]) for state, sort, address in wanted)
    assert {kind for state, _, kind in found if state == "kept"} == {"reachable"}
    leaked = Counter({sort: sum(found["lost", sort, kind] for kind in ("definite", "indirect")) for _, sort, _ in wanted})
    assert all(leaked[sort] >= 85 for state, sort, _ in wanted if state == "lost"), leaked
    # Six objects of each turn have no reference: self-watched, watched-by-bus, watching-bus, owner, and both of a pair.
    assert row["name"] == "AppItem" and 500 < row["excess"] <= 600
    assert any("signal handlers of" in step["from"] for step in steps)


@pytest.mark.matrix
def test_objects_of_gstreamer(tmp_path: Path) -> None:
    """Objects of GStreamer have the names of their types. Stale words may refer to a few of them."""
    folder = debian.cache() / "gstreamer"
    debian.unpack_packages("trixie", ["libgstreamer1.0-0"], folder, {}, dependencies=True)
    libraries = folder / "root/usr/lib/x86_64-linux-gnu"
    flags = ("-O1", str(libraries / "libgstreamer-1.0.so.0"), "-Wl,--unresolved-symbols=ignore-in-shared-libs")
    built = building.compile_program(tmp_path, "gst_objects.c", *flags)
    command = [str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries), str(built)]
    environment = {"GST_PLUGIN_SYSTEM_PATH_1_0": str(tmp_path), "GST_REGISTRY": str(tmp_path / "registry"), "GST_REGISTRY_FORK": "no"}
    with cores.Running(command, tmp_path / "run", environment) as made:
        lines = [json.loads(line) for line in findleaks("blocks", "--limit", "0", "--json", "--pid", str(made.pid)).splitlines()]
    blocks = {int(line["address"], 16): (line["type"], line["kind"]) for line in lines if "address" in line}
    wanted = [line.split() for line in made.output.splitlines() if line.startswith(("lost ", "kept "))]
    found = Counter((state, name, *blocks[(1 << 64) - 1 - int(address, 16)]) for state, name, address in wanted)
    assert all(name == named for _, name, named, _ in found)
    assert found["kept", "GstMessage", "GstMessage", "reachable"] == 200
    leaked = sum(number for (state, _, _, kind), number in found.items() if state == "lost" and kind in ("definite", "indirect"))
    assert leaked > 990 and len(wanted) == 1200


@pytest.mark.parametrize(
    ("variable", "what", "length"),
    [
        ("sessions", "GHashTable", TABLE),
        ("tree", "GTree", EACH),
        ("pointers", "GPtrArray", EACH),
        ("array", "GArray", EACH),
        ("list", "GList (doubly linked list)", EACH),
        ("slist", "GSList (linked list)", EACH),
    ],
)
def test_containers(core: str, variable: str, what: str, length: int) -> None:
    """`roots` names a container and the number of its elements."""
    row = run_json("roots", variable, core)["roots"][0]
    assert (row["container"]["what"], row["container"]["length"]) == (what, length)


@pytest.mark.matrix  # in one of 20 runs a stale word refers to the handlers, and another root retains them
def test_containers_of_an_instance(core: str) -> None:
    """An instance's hash table of numbers and its queue are fields with names of containers."""
    row = run_json("roots", "cache", "--depth", "3", core)["roots"][0]
    containers = {one["container"]["what"]: one["container"]["length"] for one in row["children"] if one["container"]}
    assert containers == {"GHashTable": EACH, "GQueue": EACH}


@pytest.mark.matrix  # in one of 20 runs a stale word refers to the handlers, and another root retains them
def test_callbacks(running: cores.Running, core: str) -> None:
    """Objects that only callbacks retain belong to a signal of an instance, to a main context, or to the table of handlers."""
    rows = {row["name"]: row for row in run_json("roots", core)["roots"] if row["sort"] == "callbacks"}
    bus = running.output.split()[0]
    (signal,) = [row for name, row in rows.items() if name.startswith(f"AppSession::closed of {bus}")]
    assert signal["retained_blocks"] >= 4 * HANDLED  # the handler, its closure, the session, its text
    (context,) = [row for name, row in rows.items() if name.startswith("default main context")]
    assert context["retained_blocks"] >= 4 * TIMEOUTS
    (table,) = [row for name, row in rows.items() if name.startswith("signal handlers")]
    assert table["retained_blocks"] >= 4 * BELOW


def test_front_ends(core: str) -> None:
    for debugger in (gdb, lldb):
        (text,) = objects(debugger(["leaks find --json"], "-c", core))
        assert json.loads(text)["totals"] == run_json("find", core)["totals"]


@pytest.fixture
def growing(program: Path, tmp_path: Path) -> Iterator[cores.Running]:
    with cores.Running([str(program), "0", "0", "0", "15000"], tmp_path) as made:
        yield made


@pytest.mark.matrix  # in one of 20 runs a stale word refers to the handlers, and another root retains them
def test_first_screen(growing: cores.Running) -> None:
    """`verdict` names the signal, the number of handlers, the function and the type that they retain."""
    text = " ".join(run_cli("verdict", "--pid", str(growing.pid)).stdout.split())  # lines may be broken anywhere
    assert f"AppSession::closed of {growing.output.split()[0]}" in text
    assert f"roots {growing.output.split()[0]}" in text
    assert "It has 15,000 handlers, calling on_closed." in text and "AppSession (15,000 objects" in text


STRUCTURES = (
    "GArray",
    "GByteArray",
    "GBytes",
    "GDateTime",
    "GError",
    "GHashTable",
    "GPtrArray",
    "GQueue",
    "GSequence",
    "GSource",
    "GString",
    "GTree",
)


def list_structures(program: Path, folder: Path, environment: Mapping[str, str], *arguments: str) -> Counter[tuple[str, str]]:
    """Count the structures by their types, under the names of the program and of findleaks. The type of a GError includes its domain, and
    that of a GSource the function that it calls."""
    with cores.Running([str(program), *arguments], folder, environment) as made:
        blocks = [json.loads(line) for line in findleaks("blocks", "--limit", "0", "--json", "--pid", str(made.pid)).splitlines()]
        types = {block["address"]: block["type"] or "-" for block in blocks if "address" in block}
        rows = [line.split() for line in made.output.splitlines() if line.startswith("lost ")]
    return Counter((name, types.get(address, "no block").partition(" (")[0].partition(" of ")[0]) for _, name, address in rows)


def check_structures(program: Path, folder: Path, environment: Mapping[str, str], unnamed: Collection[str]) -> None:
    counted = list_structures(program, folder / "run", environment)
    for name in STRUCTURES:
        named = {found: number for (wanted, found), number in counted.items() if wanted == name and found not in ("no block", "-")}
        if name in unnamed:
            assert not named, (name, named)
        else:  # GSlice does not store where the chunks of a slab begin
            assert set(named) == {name} and named[name] >= 280, (name, named)
    own = list_structures(program, folder / "own", environment, "own")
    assert set(own) == {("-", "-")} and sum(own.values()) == 900


def test_structures(tmp_path: Path) -> None:
    """Structures without a type in memory are named. Structures of the program that look like them are not."""
    program = build_with(tmp_path, "glib_structures.c", "glib-2.0")
    check_structures(program, tmp_path, {}, ())


def test_structures_without_slices(tmp_path: Path) -> None:
    """In blocks of malloc, GString and GQueue are not named, because other programs have such structures."""
    program = build_with(tmp_path, "glib_structures.c", "glib-2.0")
    check_structures(program, tmp_path, {"G_SLICE": "always-malloc"}, ("GString", "GQueue"))


@pytest.mark.matrix
@pytest.mark.parametrize("version", glibs.VERSIONS)
def test_structures_of_older_versions(version: str, tmp_path: Path) -> None:
    program = build_with(tmp_path, "glib_structures.c", "glib-2.0")
    check_structures(program, tmp_path, glibs.environment(version), ())


def check_closures(program: Path, folder: Path, environment: Mapping[str, str]) -> None:
    with cores.Running([str(program)], folder / "run", environment) as made:
        groups = run_json("find", "--pid", str(made.pid))["groups"]
        path = run_cli("blocks", "--type", "earlier table of quarks", "--pid", str(made.pid)).stdout
    found = Counter({(one["type"], one["size"]): one["blocks"] for one in groups})
    assert found == {("GClosure of on_event", 72): 300, (None, 72): 200}, groups
    assert path.count("reachable") == 9


def test_closures_and_earlier_tables_of_quarks(tmp_path: Path) -> None:
    """Leaked closures have the name of their function. Closures of classes, and the tables of quarks that GLib replaced, are not leaks."""
    check_closures(build_with(tmp_path, "gobject_closures.c", "gobject-2.0"), tmp_path, {})


@pytest.mark.matrix
@pytest.mark.parametrize("version", glibs.VERSIONS)
def test_closures_of_older_versions(version: str, tmp_path: Path) -> None:
    check_closures(build_with(tmp_path, "gobject_closures.c", "gobject-2.0"), tmp_path, glibs.environment(version))


def check_lost(program: Path, folder: Path, environment: Mapping[str, str]) -> None:
    """Check the numbers of leaked structures. Stale words may refer to a few of them."""
    with cores.Running([str(program)], folder / "run", environment) as made:
        answer = run_json("find", "--limit", "0", "--pid", str(made.pid))
        rows = [line.split(" ", 1) for line in made.output.splitlines() if " " in line]
        kept = [text for first, text in rows if first == "kept"]
        in_use = findleaks("blocks", "--kind", "reachable", "--limit", "0", "--json", "--pid", str(made.pid))
    found: Counter[str] = Counter()
    for one in answer["groups"]:
        found[one["type"]] += one["blocks"] if one["kind"] == "definite" else 0
    for number, name in rows:
        assert number == "kept" or int(number) - 3 <= found[name] <= int(number) + (name == "GMainContext"), (name, found)
    assert len(kept) == 5 and all(f'"{one}"' in in_use for one in kept)


def test_references_of_glib_itself(tmp_path: Path) -> None:
    """These do not keep anything in use: GObject's lists of disconnected handlers, and GLib's list of all main contexts. A
    source to which the program has a reference keeps its context in use, and an object its data, also if toggle references set a flag in
    the pointer. Closures without a marshaller, parts of a GBytes and channels have a type."""
    check_lost(build_with(tmp_path, "glib_lost.c", "gio-2.0"), tmp_path, {})


@pytest.mark.matrix
@pytest.mark.parametrize("version", glibs.VERSIONS)
def test_references_of_older_versions(version: str, tmp_path: Path) -> None:
    check_lost(build_with(tmp_path, "glib_lost.c", "gio-2.0"), tmp_path, glibs.environment(version))


def test_builders_of_variants(tmp_path: Path) -> None:
    """Lost builders of variants have a type, also those that have ended."""
    with cores.Running([str(build_with(tmp_path, "gvariant_builders.c", "glib-2.0"))], tmp_path / "run") as made:
        blocks = [json.loads(line) for line in run_cli("blocks", "--json", "--pid", str(made.pid)).stdout.splitlines()]
    kinds = Counter(one["kind"] for one in blocks if one.get("type") == "GVariantBuilder")
    assert sum(kinds.values()) == 61 and 1 <= kinds["reachable"] <= 3, kinds
