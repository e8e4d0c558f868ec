"""Runtimes in cores of other machines (tests/support/foreign.py): findleaks reports the same figures as the runtime prints. findleaks also
runs inside the machine."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import arm64_tests
import foreign
import foreign_truth
import go_programs
import jvms
import nodes
import nodespaces
import pytest
import truth
from accuracy import FLAGS, SOURCE
from debuggers import objects, run_cli
from foreign import ARM64
from foreign_runtimes import VARIABLES, functions, run_by, runtime

pytestmark = pytest.mark.matrix


@pytest.mark.platform("AArch64", "CPython", of="3.11")
def test_cpython() -> None:
    """findleaks counts the same objects as the interpreter and lists the same allocation sites as tracemalloc. The heap has no errors."""
    made = run_by("/usr/bin/python3.11", truth.PROGRAMS / "cpython_objects.py", "trace")
    said, found = json.loads(made.output.splitlines()[0]), runtime(made, "--no-native")
    types = {row["name"]: row for row in found["types"]}
    assert {name: row["own"]["tracked"] for name, row in types.items() if row["own"]["tracked"]} == said["tracked"]
    assert {name: types[name]["objects"] for name in said["untracked"]} == said["untracked"]
    sites = [[site["frames"], site["blocks"], site["bytes"]] for site in found["sites"]]
    assert len(said["sites"]) == 10
    assert all(site in sites for site in said["sites"])
    assert json.loads(run_cli("verify", "--json", str(made.core), check=True).stdout)["sound"] is True


@pytest.mark.platform("AArch64", "Ruby", of="3.1")
def test_ruby() -> None:
    """The counters equal those of GC.stat, minus the objects that the program creates to print them."""
    made = run_by("/usr/bin/ruby3.1", truth.PROGRAMS / "ruby_counts.rb")
    said = {name: int(value) for name, value in (pair.split("=") for pair in made.output.split()[:-1])}
    counters = runtime(made)["counters"]
    steady = ("count", "heap_allocated_pages", "heap_available_slots", "total_freed_objects", "minor_gc_count", "major_gc_count")
    assert {name: counters[name] for name in steady} == {name: said[name] for name in steady}
    assert 0 <= counters["heap_live_slots"] - said["heap_live_slots"] <= 200
    assert all(counters[name] == said[name] for name in ("T_CLASS", "T_MODULE", "T_OBJECT", "T_DATA"))
    assert all(0 <= counters[name] - said[name] <= 4096 for name in ("malloc_increase_bytes", "oldmalloc_increase_bytes"))


@pytest.mark.platform("AArch64", "Node: stacks, scopes, V8's heap", of="20, 22, 24")
@pytest.mark.parametrize("version", ["20.20.0", "22.23.3", "24.22.0"])
def test_node(version: str) -> None:
    """Complete stacks through V8's code, scopes by the functions that opened them, and the memory figures of Node."""
    node = Path(nodes.on_arm(version))
    made = run_by("./node", truth.PROGRAMS / "node_streams.js", files=(node,))
    said = json.loads(made.output.splitlines()[0])
    files = ("--exe", str(node), "--sysroot", str(made.root))
    found = runtime(made, "--exe", str(node))
    # The line that the program wrote is an object, too.
    assert 0 <= found["counters"]["memory of ArrayBuffers"] - said["arrayBuffers"] <= 4096
    assert said["arrayBuffers"] > 400 * 70000
    assert 0 <= found["counters"]["external"] - said["external"] <= 4096
    (heap,) = (part for part in found["parts"] if part["name"] == "V8's heap")
    assert sum(part["bytes"] for part in heap["parts"] if part["name"].startswith("isolate")) == said["heapTotal"]
    (streams,) = (row["objects"] for row in found["types"] if row["name"].endswith("::ZlibStream"))
    assert streams == 300
    (isolate,) = json.loads(run_cli("scopes", "--json", *files, str(made.core), check=True).stdout)["isolates"]
    assert isolate["handles"] == sum(scope["handles"] for scope in isolate["scopes"])
    assert "node::NodeMainInstance::Run()" in {scope["function"] for scope in isolate["scopes"]}
    stacks = json.loads(run_cli("stacks", "--json", *files, str(made.core), check=True).stdout)["stacks"]
    assert all(stack["complete"] for stack in stacks)
    (main,) = (functions(stack) for stack in stacks if "node::Start(int, char**)" in functions(stack))
    assert "Builtins_JSEntry" in main
    assert "Builtins_InterpreterEntryTrampoline" in main
    assert main[-1] == "_start"


@pytest.mark.platform("AArch64", "Node: what V8's spaces use", of="20, 22, 24")
@pytest.mark.parametrize("version", ["20.20.0", "22.23.3", "24.22.0"])
def test_spaces_of_v8(version: str, tmp_path: Path) -> None:
    """Each space of two isolates has the bytes that V8 reports. Both share the read-only space, which has two pages since Node 22."""
    node, addon, script = Path(nodes.on_arm(version)), tmp_path / "spaces.node", truth.PROGRAMS / "node_spaces.js"
    subprocess.run([ARM64.compiler, *foreign.ANYWHERE, *nodespaces.FLAGS, "-o", addon, truth.PROGRAMS / "node_spaces.c"], check=True)
    made = run_by("./node", script, "1", files=(node, addon), options=("--expose-gc",))
    found = runtime(made, "--only", "node", "--no-native", "--exe", str(node))
    (heap,) = (part for part in found["parts"] if part["name"] == "V8's heap")
    isolates = {part["name"].partition(" ")[2]: part["parts"] for part in heap["parts"] if part["name"].startswith("isolate")}
    shown = {name: {space["name"]: [space["bytes"], space["used"]] for space in spaces} for name, spaces in isolates.items()}
    truths_of = nodespaces.parse_spaces(made.output)
    (only,) = (part for part in found["parts"] if part["name"] == "V8's read_only_space")
    assert {tuple(truths["shared"]) for truths in truths_of.values()} == {(only["bytes"], only["used"])}
    assert len(only["ranges"]) == (1 if version.startswith("20.") else 2)
    said = {name: truths["spaces"] for name, truths in truths_of.items()}
    assert len(said) == 2
    for name, truths in said.items():
        counted = {space: sizes for space, sizes in truths.items() if space != "read_only_space"}
        assert {space: shown[name].get(space, [0, 0]) for space in counted} == counted
        assert sum(size for size, _ in counted.values()) > 5 << 20


@pytest.mark.platform("AArch64", "live, on the command line", "a wheel with the C engine")
def test_wheel_and_a_live_process_inside(tmp_path: Path) -> None:
    """findleaks runs in the emulated machine on a live process. A wheel that was built on this machine installs it, with capstone and
    without a compiler."""
    tree = foreign.tree(ARM64, "bookworm", ("python3.11", "python3-pip-whl"), "python", dependencies=True)
    wheel = arm64_tests.wheel(ARM64, tmp_path)
    built = foreign_truth.compile_for_glibc(ARM64, "bookworm", SOURCE, tmp_path / "truth", *FLAGS, "-O1")
    script = truth.PROGRAMS / "foreign_inside.py"
    words = ("blocks", "--json", "--state", "all", "--", "./truth", "5", "6", "1")
    program = foreign.Program(
        tree, ("/usr/bin/python3.11", f"./{script.name}", *words), (built, wheel, arm64_tests.capstone(tmp_path), script), VARIABLES
    )
    output, found, about = map(json.loads, foreign.picture(ARM64, program).output.splitlines()[:3])
    lines = [json.loads(line) for line in objects(found)]
    verdict = truth.compare(truth.parse(output), [line for line in lines if "address" in line])
    assert verdict.perfect, f"{verdict}\n{found[-2000:]}"
    assert [line["warnings"] for line in lines if line.get("warnings")] == []
    assert wheel.name.endswith("-py3-none-linux_aarch64.whl")
    assert about == {"machine": "aarch64", "compiler": None, "engine": "kernel"}


JAVA = "/usr/lib/jvm/java-17-openjdk-arm64/bin/java"


@pytest.mark.platform("AArch64", "JVM", of="17")
def test_jvm(tmp_path: Path) -> None:
    """The JVM prints the same figures for the code cache, the heap and native memory, except for memory that it allocates to print them."""
    jvms.compile_java(truth.PROGRAMS / "Figures.java", tmp_path, "--release", "17")
    tree = foreign.tree(ARM64, "bookworm", ("openjdk-17-jre-headless", "libstdc++6"), "jvm-17", dependencies=True)
    options = ("-Xmx64m", "-Xint", "-XX:+UseSerialGC", "-XX:NativeMemoryTracking=summary", "-cp", ".")
    made = foreign.picture(ARM64, foreign.Program(tree, (JAVA, *options, "Figures"), tuple(sorted(tmp_path.glob("*.class"))), VARIABLES))
    found = runtime(made, "--only", "jvm", "--no-native")
    kinds = re.findall(r"^-\s+(.+?) \(reserved=(\d+), committed=(\d+)\)", made.output, re.M)
    counters = found["counters"]
    changed = {name: abs(counters.get(f"NMT: {name}, committed", 0) - int(committed)) for name, _, committed in kinds}
    assert len(changed) > 12
    assert sum(changed.values()) <= 4096
    for name, reserved, committed in kinds:
        if name in ("Java Heap", "Thread", "Code", "GC", "Shared class space", "Metaspace"):
            assert (counters[f"NMT: {name}, reserved"], counters[f"NMT: {name}, committed"]) == (int(reserved), int(committed))
    parts = {part["name"]: part for part in found["parts"]}
    (bounds,) = re.findall(r"bounds \[0x0*(\w+), 0x0*(\w+), ", made.output)
    assert parts["code cache"]["ranges"] == [[f"0x{bound}" for bound in bounds]]
    used = sum(int(number) for number in re.findall(r"generation .*used (\d+)K", made.output))
    assert 0 <= parts["Java heap"]["used"] - 1024 * used <= 1 << 20  # its output consists of objects
    (committed,) = re.findall(r"Metaspace +used \d+K, committed (\d+)K", made.output)
    assert parts["metaspace"]["bytes"] == int(committed) << 10


@pytest.mark.platform("AArch64", "Go")
def test_go(tmp_path: Path) -> None:
    """The figures of the heap equal those of runtime.MemStats, minus memory that Go allocates while it prints the crash."""
    built = go_programs.build(tmp_path, "", go_programs.STRIPPED, name="go_stacks", machine="arm64")
    variables = {**VARIABLES, "GOTRACEBACK": "crash"}
    program = foreign.Program(foreign_truth.tree(ARM64, "bookworm"), ("./go_stacks", "500", "400"), (built,), variables)
    made = foreign.picture(ARM64, program)
    in_use, stack, mapped = (int(word) for word in made.output.split()[:3])
    found = runtime(made, "--only", "go", "--exe", str(built))
    (heap, *_) = found["parts"]
    parts = {part["name"]: part["bytes"] for part in heap["parts"]}
    assert 0 <= found["counters"]["HeapInuse"] - in_use < 1 << 20 < in_use // 20
    assert parts["objects"] == found["counters"]["HeapInuse"]
    assert 0 <= parts["stacks of goroutines"] - stack < 1 << 20
    assert sum(parts.values()) == heap["bytes"] >= mapped - (1 << 20)


@pytest.mark.slow
@pytest.mark.platform(
    "AArch64", "live, in GDB", "live, in LLDB", "cores of gcore", "`count`, in GDB and on the command line", "`count`, in LLDB"
)
def test_the_suite_inside() -> None:
    """The tests of `make test-arm64` pass in the machine."""
    assert arm64_tests.main([]) == 0
