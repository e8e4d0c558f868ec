"""PHP: each block of Zend's memory manager, values by type, garbage, and the figures that PHP itself prints."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import debian
import fpms
import phps
import pytest
import real
import truth
from debuggers import gdb, lldb, objects, run_cli, run_json

import cores
from findleaks.allocators.zend.instance import ZendHeap
from findleaks.allocators.zend.layout import CHUNK, SIZES
from findleaks.session import Session
from findleaks.target.core import open_core

FFI = ("-n", "-d", "extension=ffi.so", "-d", "ffi.enable=1")


def program(name: str, *words: str) -> list[str]:
    options = FFI if name == "zend.php" else ("-n",)
    return [real.executable("php"), *options, str(truth.PROGRAMS / name), *words]


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cores.Running]:
    with cores.Running(program("zend.php"), tmp_path_factory.mktemp("zend")) as made:
        yield made


@pytest.fixture(scope="module")
def values(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cores.Running]:
    with cores.Running(program("values.php", "drop"), tmp_path_factory.mktemp("values")) as made:
        yield made


def check(output: str, where: list[str]) -> None:
    """Check that each block has the size, the state and the kind that the program printed, and that no other block is lost.

    PHP's own blocks contain stale words. If such a word refers to a lost block, `refs` must show it.
    """
    answer, warnings = truth.ask(*where)
    assert not [warning for warning in warnings if "PHP" in warning]
    by_address = {int(block["address"], 16): block for block in answer}
    wanted = {int(line.split()[2], 16): line.split()[:2] for line in output.splitlines() if " 0x" in line}
    counted: Counter[tuple[str, str]] = Counter()
    for address, (kind, size) in wanted.items():
        block = by_address.get(address)
        if block is None:  # pages of a large block that was freed
            assert kind == "freed" and int(size) > 3072
            continue
        assert block["size"] == int(size), (kind, hex(address))
        counted[kind, block.get("kind") if block["state"] == "in-use" else block["state"]] += 1
    lost = {int(block["address"], 16) for block in answer if block.get("kind") in truth.LOST and block["allocator"] == "zend-mm"}
    held = {address for address, (kind, _) in wanted.items() if kind == "lost"} - lost
    assert lost <= {address for address, (kind, _) in wanted.items() if kind == "lost"} and len(held) < 20
    for address in held:
        assert run_json("refs", hex(address), *where)["live"], hex(address)
    assert counted["held", "reachable"] > 300 and counted["freed", "free"] > 300 and counted["lost", "definite"] == len(lost) > 300
    assert not {("held", "definite"), ("held", "possible"), ("held", "free"), ("freed", "reachable"), ("freed", "definite")} & set(counted)


def test_blocks_of_a_live_process(blocks: cores.Running) -> None:
    check(blocks.output, ["--pid", str(blocks.pid)])


@pytest.mark.matrix
def test_blocks_in_a_core_by_gdb(blocks: cores.Running) -> None:
    check(blocks.output, [str(blocks.gcore())])


def test_blocks_in_a_core_by_the_kernel(tmp_path: Path) -> None:
    with cores.Running(program("zend.php"), tmp_path / "run") as made:
        check(made.output, [str(made.kernel_core())])


def test_figures_are_those_of_php(blocks: cores.Running) -> None:
    """findleaks reports the figures that PHP printed. PHP allocated a little memory after it read its figures."""
    (line,) = [line for line in blocks.output.splitlines() if line.startswith("usage")]
    usage, real_usage, peak, real_peak = map(int, line.split()[1:])
    answer = run_json("caches", "--pid", str(blocks.pid))
    (one,) = [each for each in answer["totals"] if each["allocator"] == "zend-mm"]
    own = one["counted"]
    assert own["memory_get_usage(true)"] == real_usage and own["memory_get_peak_usage(true)"] == real_peak
    assert abs(own["memory_get_usage()"] - usage) <= 4096 and abs(own["memory_get_peak_usage()"] - peak) <= 4096
    assert run_json("find", "--pid", str(blocks.pid))["trusted"]
    assert run_cli("verify", "--pid", str(blocks.pid)).returncode == 0


@pytest.mark.parametrize("debugger", [gdb, pytest.param(lldb, marks=pytest.mark.matrix)])
def test_debuggers(values: cores.Running, debugger: Any) -> None:
    (text,) = objects(debugger(["leaks find --json"], "-p", str(values.pid)))
    assert json.loads(text)["totals"] == run_json("find", "--pid", str(values.pid))["totals"]


def test_stale_elements(tmp_path: Path) -> None:
    """Deleted and unused elements of an array, and bytes after the properties of an object, do not count as references. The objects that
    they refer to are garbage, because each refers to itself."""
    with cores.Running(program("stale_php.php"), tmp_path) as made:
        items, deleted, kept = map(int, made.output.split()[:3])
        answer = run_json("runtime", "--limit", "0", "--pid", str(made.pid))
        leaks = run_json("find", "--pid", str(made.pid))
    assert deleted > 200_000
    types = {row["name"]: row for row in answer["runtimes"][0]["types"]}
    assert types["Item"]["objects"] == items and types["Six"]["objects"] == types["Forty"]["objects"] == kept
    assert items - 20 <= types["Item"]["leaked"]["blocks"] <= items  # stale words of the stack may refer to some
    assert not types["Six"]["leaked"]["blocks"] and not types["Forty"]["leaked"]["blocks"]
    (counts,) = leaks["reference_counts"]["types"]
    assert (counts["name"], counts["objects"], counts["uncollected"]) == ("Item", 0, types["Item"]["leaked"]["blocks"]) and leaks["trusted"]


def check_released(made: cores.Running) -> None:
    names = made.output.split()[:-1]
    assert len(names) == 25
    (runtime,) = run_json("runtime", "--limit", "0", "--pid", str(made.pid))["runtimes"]
    types = {row["name"]: (row["objects"], row["leaked"]["blocks"]) for row in runtime["types"]}
    for name in names:  # stale words in PHP's structures and on C stacks refer to some objects
        assert types[name][0] == 200 and types[name][1] >= 170, (name, types[name])
    kept = [types[name][1] for name in ("Holder", "Generator", "Fiber", "WeakMap", "SplObjectStorage", "SplFixedArray", "SplQueue")]
    assert not any(kept), kept


def test_released_values(tmp_path: Path) -> None:
    """Released values do not count as references: in properties, elements, references, collections, weak references and frames."""
    with cores.Running(program("released.php"), tmp_path) as made:
        check_released(made)


def check_collections(made: cores.Running) -> None:
    wanted = {f"Registry->{name} (PHP variable)": (kind, int(count)) for name, kind, count in re.findall(r"(\w+) (\w+) (\d+)", made.output)}
    assert len(wanted) == 8
    answer = run_json("roots", "--limit", "0", "--pid", str(made.pid))
    named = {row["name"]: row for row in answer["roots"] if row["name"] in wanted}
    assert {name: (row["container"]["what"], row["container"]["length"]) for name, row in named.items()} == wanted
    assert named["Registry->list (PHP variable)"]["retained_blocks"] > 290  # stale words of PHP may refer to some elements


def test_collections_are_named(tmp_path: Path) -> None:
    """A property that has a collection retains the elements of the collection."""
    with cores.Running(program("collections.php"), tmp_path) as made:
        check_collections(made)


def check_static_holders(made: cores.Running) -> None:
    wanted = {name: int(count) for name, count in re.findall(r"(.+)\t(\d+)", made.output)}
    assert len(wanted) == 8
    answer = run_json("roots", "--limit", "0", "--pid", str(made.pid))
    rows = {row["name"].removesuffix(" (PHP variable)"): row for row in answer["roots"] if row["name"].endswith(" (PHP variable)")}
    assert {name: row["container"]["length"] for name, row in rows.items() if not name.startswith("$")} == wanted
    assert all(rows[name]["retained_blocks"] >= count for name, count in wanted.items())
    assert rows["$others"]["retained_blocks"] < 250  # class objects do not retain the static property of their class
    assert rows["$documents"]["retained_blocks"] >= 100  # the zend_object of these objects is far from the start of the block


def test_static_variables_and_inner_arrays_are_named(tmp_path: Path) -> None:
    """Static properties of a class that has only static functions, static variables of functions, and arrays in arrays have names."""
    with cores.Running(program("static_holders.php"), tmp_path) as made:
        check_static_holders(made)


def test_garbage_is_no_leak(values: cores.Running) -> None:
    """The program drops 200 pairs of objects. Each object has an array, and this has a block of elements and two strings."""
    answer = run_json("find", "--pid", str(values.pid))
    assert answer["trusted"] and 198 <= answer["totals"]["definite"]["blocks"] <= 200  # a stale word may refer to one pair
    (group,) = answer["groups"]
    assert (group["type"], group["runtime"], group["cycle"], group["garbage"]) == ("Order", "PHP", 2, True)
    types = {row["name"]: row for row in run_json("runtime", "--limit", "0", "--pid", str(values.pid))["runtimes"][0]["types"]}
    assert {name: types[name]["objects"] for name in ("Order", "Book", "stdClass", "SplObjectStorage")} == {
        "Order": 700,
        "Book": 1,
        "stdClass": 100,
        "SplObjectStorage": 1,
    }
    assert types["array of 3"]["objects"] == 700 and types["array of 256–511"]["objects"] == 1


def test_names_of_holders(values: cores.Running) -> None:
    """A property, a static property and a global variable have large arrays. `path` names the elements by key."""
    where = ["--pid", str(values.pid)]
    answer = run_json("roots", "--limit", "12", *where)
    named = {row["name"]: row["container"]["length"] for row in answer["roots"] if row["name"].endswith("(PHP variable)")}
    assert named == {f"{name} (PHP variable)": length for name, length in (("Book->entries", 300), ("Book::$kept", 100), ("$numbers", 80))}
    lines = [json.loads(line) for line in run_cli("blocks", "--json", "--type", "stdClass", "--limit", "1", *where).stdout.splitlines()]
    path = run_cli("path", next(line["address"] for line in lines if "address" in line), *where).stdout
    assert "Book::$kept" in path and re.search(r"elements of an array; \[\d+\]", path)


@pytest.mark.parametrize("name", ["values.php", "healthy.php"])
def test_a_healthy_process_has_no_finding(name: str, tmp_path: Path) -> None:
    with cores.Running(program(name), tmp_path / "run") as made:
        done = run_cli("find", "--json", "--pid", str(made.pid))
    answer = json.loads(done.stdout)
    assert answer["trusted"] and done.returncode == 0
    assert answer["totals"]["definite"]["blocks"] == answer["totals"]["indirect"]["blocks"] == 0


LAZY = """
class Entity { public $get; function __construct(public int $id) { $this->get = fn() => $this->id; } }
gc_disable();
$lazy = [];
for ($i = 0; $i < 300; $i++) {
    new Entity($i);
    $held[] = function () use ($i) { return $i; };
    $lazy[$i] = (function () use ($i) { yield "lazy $i"; yield 2; })();
    $lazy[$i]->current();
}
fwrite(STDOUT, "ready\n"); while (true) { sleep(3600); }
"""
"""Entities are in cycles with their closures. Only the frame of a generator refers to the closure that yields."""


def test_closures_of_generators(tmp_path: Path) -> None:
    with cores.Running([real.executable("php"), "-n", "-r", LAZY], tmp_path / "run") as made:
        output = run_cli("blocks", "--json", "--type", "Closure", "--limit", "0", "--pid", str(made.pid)).stdout
    kinds = Counter(line["kind"] for line in map(json.loads, output.splitlines()) if "address" in line)
    assert kinds["reachable"] >= 600 and kinds["definite"] + kinds["indirect"] >= 250


CYCLES = """
class User {
    public $made, $name;
    function __construct($i) { $this->name = "user $i"; }
    function bind() { return function () { return $this; }; }
}
function clear($n) { return $n ? clear($n - 1) : array_fill(0, 8, $n); }
gc_disable();
for ($i = 0; $i < 100; $i++) {
    $user = new User($i);
    $user->made = new Fiber(function () use ($user) { Fiber::suspend(1); });
    $user->made->start();
    $user = new User($i);
    $user->made = $user->bind();
}
unset($user);
clear(50);
fwrite(STDOUT, "ready\n"); while (true) { sleep(3600); }
"""
"""Users are in cycles with fibers and with closures. The native stack of a fiber is a mapping. Stale words may keep a few."""


def test_garbage_cycles_of_fibers_and_closures(tmp_path: Path) -> None:
    """All cycles are garbage of the type User, with the stacks of the fibers. Nothing is leaked, and nothing counts twice."""
    with cores.Running([real.executable("php"), "-n", "-r", CYCLES], tmp_path / "run") as made:
        where = "--pid", str(made.pid)
        answer, findings = run_json("find", *where), run_json("verdict", *where)["findings"]
    heads = [one for one in answer["groups"] if one["kind"] == "definite"]
    assert {one["type"] for one in heads} == {"User"} and all(one["garbage"] for one in heads)
    assert 180 <= sum(one["blocks"] for one in heads) <= 200
    leaked = [answer["totals"][kind]["blocks"] for kind in ("definite", "indirect")]
    assert answer["reference_counts"]["uncollected"]["blocks"] == sum(leaked) and "mappings" not in answer
    texts = [one["text"].partition(":")[0] for one in findings]
    assert len(texts) == 2 and texts[0] == "Garbage, not leaked" and texts[1].startswith("Nothing leaked"), texts


def test_damage(blocks: cores.Running, tmp_path: Path) -> None:
    """An invalid entry of a page map and an overwritten link of a free block are reported, and the other blocks are read."""
    core = blocks.gcore()
    data = bytearray(core.read_bytes())
    session = Session(open_core(str(core)))
    (heap,) = [one for one in session.directory.allocators if isinstance(one, ZendHeap)]
    run = next(run for run in heap.chunks.in_use[0].runs if run.pages == 1 and 1 < run.blocks < 16)
    free = heap.slots[SIZES.index(56)]
    entry = data.find(session.target.read(heap.place.chunk, 4096)) + heap.place.map + 4 * run.page
    link = data.find(session.target.read(free & -CHUNK, 4096)) + free % CHUNK
    session.close()
    data[entry : entry + 4] = b"\xff\0\0\x80"
    data[link : link + 8] = (free + 8).to_bytes(8, "little")
    core = tmp_path / "damaged.core"
    core.write_bytes(data)
    answer = run_json("find", str(core))
    assert not answer["trusted"] and answer["totals"]["in_use"]["blocks"] > 10_000
    assert any(f"invalid entry for its page {run.page}" in warning for warning in answer["warnings"])
    assert any(f"{free + 8:#x}, where no block of this size begins" in warning for warning in answer["warnings"])
    assert run_cli("verify", str(core)).returncode == 1


def php_84() -> tuple[list[str], Path]:
    """Return PHP 8.4, which stores an encoded copy of the link in each free block, and the folder of its extensions."""
    folder = debian.cache() / "php-8.4"
    debian.unpack_packages("trixie", ["php8.4-cli"], folder, {}, dependencies=True)
    libraries = folder / "root" / "usr" / "lib" / "x86_64-linux-gnu"
    extensions = next((folder / "root" / "usr" / "lib" / "php").glob("2*"))
    loader = [str(libraries / "ld-linux-x86-64.so.2"), "--library-path", str(libraries), str(folder / "root/usr/bin/php8.4")]
    return loader, extensions


def php_81() -> tuple[list[str], Path]:
    return find_package("8.1")


def php_83() -> tuple[list[str], Path]:
    return find_package("8.3")


def find_package(version: str) -> tuple[list[str], Path]:
    """Return the PHP of a package, and the folder of its extensions."""
    folder = phps.get(version)
    loader = ["/lib64/ld-linux-x86-64.so.2", "--library-path", str(folder / "lib"), str(folder / "php" / "php")]
    return loader, folder / "php" / "modules"


@pytest.mark.matrix
@pytest.mark.parametrize("version", [php_81, php_83, php_84])
@pytest.mark.parametrize("name", ["zend.php", "values.php", "healthy.php", "released.php", "collections.php", "static_holders.php"])
def test_other_versions(name: str, version: Callable[[], tuple[list[str], Path]], tmp_path: Path) -> None:
    loader, extensions = version()
    options = [*FFI[:1], "-d", f"extension_dir={extensions}", *FFI[1:]] if name == "zend.php" else ["-n"]
    words = ["drop"] if name == "zend.php" else []
    with cores.Running([*loader, *options, str(truth.PROGRAMS / name), *words], tmp_path / "run") as made:
        where = ["--pid", str(made.pid)]
        if name == "zend.php":
            check(made.output, where)
        elif name == "released.php":
            check_released(made)
        elif name == "collections.php":
            check_collections(made)
        elif name == "static_holders.php":
            check_static_holders(made)
        else:
            assert run_json("find", *where)["totals"]["definite"]["blocks"] == (200 if name == "values.php" else 0)
        assert run_cli("verify", *where).returncode == 0


REQUEST = f"""<?php
define('STDOUT', fopen('php://output', 'w'));
ob_implicit_flush(true);
echo 'worker ', getmypid(), "\\n";
$argv = ['', 'drop'];
include '{truth.PROGRAMS / "values.php"}';
"""


@pytest.mark.matrix
@pytest.mark.parametrize("version", fpms.VERSIONS)
def test_a_worker_of_fpm(version: str, tmp_path: Path) -> None:
    """A worker of PHP-FPM during a request: the leaked cycles and PHP's own figures."""
    with fpms.run_request(version, tmp_path, REQUEST) as output:
        worker = re.search(r"worker (\d+)", output)
        usage = re.search(r"usage (\d+) (\d+)", output)
        assert worker is not None and usage is not None
        where = "--pid", worker[1]
        groups = {one["type"]: one for one in run_json("find", *where)["groups"]}
        counters = run_json("runtime", *where)["runtimes"][0]["counters"]
    assert (groups["Order"]["blocks"], groups["Order"]["indirect_blocks"], groups["Order"]["cycle"]) == (200, 1800, 2)
    assert counters["memory_get_usage(true)"] == int(usage[2]) and abs(counters["memory_get_usage()"] - int(usage[1])) <= 4096
