"""Perl: each object that a program prints, leaked cycles and closures, counts by type, and names of variables."""

from __future__ import annotations

import json
import re
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import debian
import perls
import pytest
import real
import truth
from debuggers import gdb, lldb, objects, run_cli, run_json

import cores
from findleaks.allocators.perl.instance import PerlArenas
from findleaks.engine.terms import LAST_WORD, State
from findleaks.session import Session
from findleaks.target.core import open_core

CLOSURE = "closure at programs/values.pl:65"


def program(*words: str) -> list[str]:
    return [real.executable("perl"), str(truth.PROGRAMS / "values.pl"), *words]


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cores.Running]:
    with cores.Running(program("leak"), tmp_path_factory.mktemp("perl")) as made:
        yield made


@pytest.fixture(scope="module")
def core(values: cores.Running) -> Path:
    return values.gcore()


def check(output: str, *where: str) -> None:
    """Check that each object has the class and the kind that the program printed. No other object is leaked, and each freed
    object is reported as free.

    Perl leaves words on the C stack. If such a word refers to a leaked object, the object has a path.
    """
    answer, warnings = truth.ask(*where)
    assert not [warning for warning in warnings if "Perl" in warning]
    by_address = {int(block["address"], 16): block for block in answer}
    wanted = {int(address, 16): (kind, name) for kind, name, address in re.findall(r"^(\w+) (\w+) (0x\w+)$", output, re.MULTILINE)}
    counted: Counter[tuple[str, str]] = Counter()
    for address, (kind, name) in wanted.items():
        block = by_address[address]
        state = block["kind"] if block["state"] == "in-use" else block["state"]
        counted[kind, "leaked" if state in truth.LOST else state] += 1
        referred = kind == "leaked" and state not in truth.LOST
        assert kind == "freed" or block["type"] == (CLOSURE if name == "CODE" else name)
        assert not referred or run_json("path", hex(address), *where)["path"], hex(address)
    named = [block for block in answer if block.get("type") in ("Order", "Point", CLOSURE)]
    lost = {int(block["address"], 16) for block in named if block["kind"] in truth.LOST}
    assert lost <= {address for address, (kind, _) in wanted.items() if kind == "leaked"}
    assert counted["held", "reachable"] == 1203 and counted["freed", "free"] == 203 and counted["leaked", "leaked"] > 430
    assert {kind for kind, _ in set(counted) - {("held", "reachable"), ("freed", "free"), ("leaked", "leaked")}} <= {"leaked"}
    assert len(named) == 863 + 750 + 101  # includes the closure from which the other closures are copied


def test_objects_of_a_live_process(values: cores.Running) -> None:
    check(values.output, "--pid", str(values.pid))


@pytest.mark.matrix
def test_objects_in_a_core_by_gdb(values: cores.Running, core: Path) -> None:
    check(values.output, str(core))


@pytest.mark.matrix
def test_objects_in_a_core_by_the_kernel(tmp_path: Path) -> None:
    with cores.Running(program("leak"), tmp_path / "run") as made:
        check(made.output, str(made.kernel_core()))


def test_leaks_are_explained(values: cores.Running) -> None:
    """A cycle has the name of its closure, or of its class if it has no closure. Reference counts show which objects lack a decrement."""
    where = ["--pid", str(values.pid)]
    answer = run_json("find", *where)
    assert answer["trusted"]
    groups = {(group["type"], group["cycle"] != 1): group["blocks"] for group in answer["groups"] if group["kind"] == "definite"}
    assert set(groups) == {(CLOSURE, True), ("Order", True), ("Point", False)}
    assert groups[CLOSURE, True] > 90 and groups["Order", True] > 90 and groups["Point", False] > 45
    (miscounted,) = answer["reference_counts"]["types"]
    assert (miscounted["name"], miscounted["objects"], miscounted["excess"]) == ("Point", groups["Point", False], groups["Point", False])
    text = " ".join(run_cli("verdict", *where).stdout.split())  # lines may be broken anywhere
    assert CLOSURE in text and "Scalar::Util::weaken" in text and "a SvREFCNT_dec() is missing" in text


def test_counts_by_type(values: cores.Running) -> None:
    """The total number of values equals Perl's own count."""
    (one,) = run_json("runtime", "--limit", "0", "--pid", str(values.pid))["runtimes"]
    types = {row["name"]: row["objects"] for row in one["types"]}
    assert (types["Order"], types["Point"], types[CLOSURE]) == (863, 750, 101)
    assert sum(types.values()) == one["counters"]["PL_sv_count"] > 10_000
    assert one["version"] == "5.36"


def test_names_of_holders(tmp_path: Path) -> None:
    """This needs a process that no other test has stopped: after a stop, the path may begin at the thread control block."""
    with cores.Running(program("leak"), tmp_path / "run") as values:
        where = ["--pid", str(values.pid)]
        rows = run_json("roots", "--limit", "30", *where)["roots"]
        held = next(address for kind, address in re.findall(r"^(held) Point (0x\w+)$", values.output, re.MULTILINE))
        path = run_cli("path", held, *where).stdout
    lengths = {name: int(count) for name, count in re.findall(r"^elements (\S+) (\d+)$", values.output, re.MULTILINE)}
    wanted = {**lengths, "my %hidden in programs/values.pl": 300}
    named = {row["name"].replace(" (Perl variable)", ""): row["container"]["length"] for row in rows if row["container"]}
    assert {name: named.get(name) for name in wanted} == wanted and len(wanted) == 4
    assert re.search(r"@Shop::points.*\[\d+\]", path, re.DOTALL)


@pytest.mark.parametrize("debugger", [gdb, pytest.param(lldb, marks=pytest.mark.matrix)])
def test_debuggers(values: cores.Running, debugger: Any) -> None:
    (text,) = objects(debugger(["leaks find --json"], "-p", str(values.pid)))
    assert json.loads(text)["totals"] == run_json("find", "--pid", str(values.pid))["totals"]


def test_tied_variables(tmp_path: Path) -> None:
    """A tied variable has no elements. `roots` names it as the root that retains the object which implements it."""
    with cores.Running([*program()[:1], str(truth.PROGRAMS / "tied.pl")], tmp_path / "run") as made:
        rows = run_json("roots", "--limit", "30", "--pid", str(made.pid))["roots"]
    lengths = {row["name"]: row["container"]["length"] for row in rows if row["container"]}
    assert (lengths["%main::sessions (Perl variable)"], lengths["@main::queue (Perl variable)"]) == (3000, 2001)


def test_stale_words(tmp_path: Path) -> None:
    """Numbers, and the memory of strings that are numbers now, do not keep lost objects."""
    with cores.Running([*program()[:1], str(truth.PROGRAMS / "stale_keys.pl")], tmp_path / "run") as made:
        answer, _ = truth.ask("--pid", str(made.pid))
    kinds = {int(block["address"], 16): block["kind"] for block in answer}
    lost = re.findall(r"^lost (\w+) (\w+)$", made.output, re.MULTILINE)
    counted = Counter(kind for kind, address in lost if kinds[int(address, 16)] in truth.LOST)
    # Words on the C stack may refer to a few of them.
    assert len(lost) == 400 and min(counted["number"], counted["string"]) >= 195, counted


def test_words_of_shared_keys(core: Path) -> None:
    """Only the text of keys that hashes share, and the bytes after it in their blocks, are not scanned. The last word of a text may
    contain stale bytes that, together with the end of the text, look like an address."""
    session = Session(open_core(str(core)))
    (runtime,) = [one for one in session.runtimes if one.name == "Perl"]
    blocks, excluded, checked = session.directory.blocks, runtime.excluded_words(), Counter[int]()
    assert excluded is not None
    masks = [one.words for one in excluded.exclusions]
    for index, (address, size, state) in enumerate(zip(*blocks.columns()[:3])):
        data = session.target.read(address, size) if state == State.IN_USE and size >= 40 else b""
        _, key, _, _, length = struct.unpack("<QQQIi", data[:32]) if data else (0,) * 5
        if key == address + 24 and 0 <= length <= size - 34 and data[32 + length] == 0:
            unused = (size - 34 - length) // 8
            wanted = sum(1 << word for word in range(3, size // 8))
            if size // 8 < LAST_WORD:
                assert masks[excluded.patterns[index]] & ((1 << size // 8) - 1) == wanted, hex(address)
                checked[unused] += 1
    session.close()
    assert checked[0] > 300 and checked[1] > 300


def test_a_healthy_process_has_no_leak(tmp_path: Path) -> None:
    with cores.Running(program("keep"), tmp_path / "run") as made:
        done = run_cli("find", "--json", "--pid", str(made.pid))
    answer = json.loads(done.stdout)
    assert answer["trusted"] and done.returncode == 0
    assert [answer["totals"][kind]["blocks"] for kind in ("definite", "indirect", "possible")] == [0, 0, 0]


def test_damage(core: Path, tmp_path: Path) -> None:
    """A damaged list of arenas and a damaged list of free bodies are reported, and the other objects are read."""
    session = Session(open_core(str(core)))
    (arenas,) = [one for one in session.directory.allocators if isinstance(one, PerlArenas)]
    data = bytearray(core.read_bytes())
    first = session.target.word(arenas.interpreter.address)
    second, free = session.target.word(first), arenas.free_bodies[0]
    places = [data.find(session.target.read(one & -4096, 4096)) + one % 4096 for one in (second, free)]
    session.close()
    for place, word in zip(places, (0xDEAD0001, free + 3)):
        data[place : place + 16] = word.to_bytes(8, "little") + b"\xff" * 8
    damaged = tmp_path / "damaged.core"
    damaged.write_bytes(data)
    answer = run_json("find", str(damaged))
    assert not answer["trusted"] and answer["totals"]["in_use"]["blocks"] > 5000
    assert any(f"list of arenas is damaged at {second:#x}" in warning for warning in answer["warnings"])
    assert any("list of free bodies" in warning for warning in answer["warnings"])


@pytest.mark.matrix
@pytest.mark.parametrize("mode", ["leak", "keep"])
def test_perl_540(mode: str, tmp_path: Path) -> None:
    folder = debian.cache() / "perl-5.40"
    debian.unpack_packages("trixie", ["perl", "libperl-dev"], folder, {}, dependencies=True)
    root = folder / "root"
    libraries = root / "usr/lib/x86_64-linux-gnu"
    modules = [libraries / "perl/5.40", libraries / "perl-base", root / "usr/share/perl/5.40"]
    loader = [str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries), str(root / "usr/bin/perl5.40-x86_64-linux-gnu")]
    check_build([*loader, *(f"-I{one}" for one in modules)], "5.40", mode, tmp_path)


@pytest.mark.matrix
@pytest.mark.parametrize("mode", ["leak", "keep"])
def test_a_build_without_threads(mode: str, tmp_path: Path) -> None:
    """Without threads, the variables of the interpreter are global variables of the file."""
    folder = perls.without_threads()
    check_build([str(folder / "perl"), f"-I{folder / 'lib'}"], "5.36", mode, tmp_path)


@pytest.mark.matrix
def test_perl_532_is_not_read(tmp_path: Path) -> None:
    """Perl before 5.36 has other structures. Nothing is reported as leaked there."""
    folder = debian.cache() / "perl-5.32"
    debian.unpack_packages("bullseye", ["perl-base", "libc6", "libcrypt1"], folder, {}, dependencies=False)
    libraries = folder / "root/lib/x86_64-linux-gnu"
    paths = f"{libraries}:{folder / 'root/usr/lib/x86_64-linux-gnu'}"
    script = "my %kept; $kept{$_} = {number => $_, itself => \\%kept} for 1 .. 20000; $| = 1; print qq(ready\\n); sleep 3600"
    command = [str(libraries / "ld-2.31.so"), "--library-path", paths, str(folder / "root/usr/bin/perl"), "-e", script]
    with cores.Running(command, tmp_path / "run") as made:
        answer = run_json("find", "--pid", str(made.pid))
    assert answer["trusted"] and [one["name"] for one in answer["allocators"]] == ["glibc"]
    assert answer["totals"]["definite"]["blocks"] == 0 and answer["unread"]["in_malloc_blocks"]["of"] == "Perl"


def check_build(perl: list[str], version: str, mode: str, folder: Path) -> None:
    """Check the objects of the program in another Perl."""
    with cores.Running([*perl, str(truth.PROGRAMS / "values.pl"), mode], folder / "run") as made:
        where = ["--pid", str(made.pid)]
        assert run_json("runtime", *where)["runtimes"][0]["version"] == version
        if mode == "leak":
            check(made.output, *where)
        answer = run_json("find", *where)
        assert answer["trusted"] and (answer["totals"]["definite"]["blocks"] > 200) == (mode == "leak")
        if mode == "keep":
            assert [answer["totals"][kind]["blocks"] for kind in ("definite", "indirect")] == [0, 0]


def test_interpreters_of_threads(tmp_path: Path) -> None:
    """Values of all threads are read: leaked cycles of each thread are found, and no other objects."""
    with cores.Running([real.executable("perl"), str(truth.PROGRAMS / "threads.pl")], tmp_path / "run") as made:
        core = str(made.kernel_core())
    (perl,) = run_json("runtime", "--limit", "0", core)["runtimes"]
    types = {row["name"]: (row["objects"], row["leaked"]["blocks"]) for row in perl["types"]}
    assert types["Held"] == (600, 0) and types["Lost"][0] == 450 and types["Lost"][1] >= 435
    assert run_cli("verify", core).returncode == 0
