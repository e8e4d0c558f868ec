"""Cores that findleaks writes of a live process have the memory and threads of the process, for findleaks and for debuggers."""

from __future__ import annotations

import io
import json
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import debuggers
import evidence
import pytest
import truth
from accuracy import own_files
from counts import until

from cores import Running, states
from findleaks import commands
from findleaks.errors import TargetError
from findleaks.session import Session
from findleaks.target.base import Target
from findleaks.target.copied import CopiedProcess, attach
from findleaks.target.core import CoreTarget, open_core
from findleaks.target.core_writer import Written, write_core
from findleaks.target.live import LiveTarget

PAGE = 4096
THREADS = 8
QUESTIONS = ("find", "blocks --state all", "verdict", "roots --limit 0", "stacks", "caches", "map", "verify")
WRITER = """
import sys, time
from findleaks.errors import FindleaksError
from findleaks.target.copied import attach
from findleaks.target.core_writer import write_core
step = sys.argv[3:]
def progress(part):
    if part and step:
        print("writing", flush=True)
        time.sleep(60)
try:
    with attach(int(sys.argv[1])) as target:
        print(write_core(target, sys.argv[2], progress=progress).threads)
except FindleaksError as error:
    print(error)
"""


class Pictures(NamedTuple):
    """One snapshot of one process: the results of its copy, and the cores written from it."""

    at: dict[str, tuple[int, int]]  # address and size of each mapping, by name
    live: CopiedProcess
    answers: dict[str, list[Any]]  # results of the copy, by command
    core: Path
    packed: Path
    written: Written
    program: Path


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pictures]:
    folder = tmp_path_factory.mktemp("kinds")
    program = folder / "kinds"
    subprocess.run(["gcc", "-g", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", program, truth.PROGRAMS / "kinds.c"], check=True)
    (folder / "data").write_bytes(random.Random(1).randbytes(64 * PAGE))
    with Running([str(program), str(THREADS), str(folder / "data")], folder / "run") as run:
        rows = [line.split() for line in run.output.splitlines() if " 0x" in line]
        at = {name: (int(address, 16), int(size)) for name, address, size in rows}
        with attach(run.pid) as live:
            assert isinstance(live, CopiedProcess)
            written = write_core(live, str(folder / "core"))
            write_core(live, str(folder / "core.zst"), compress=True)
            answers = {words: ask(live, words) for words in QUESTIONS}
            yield Pictures(at, live, answers, folder / "core", folder / "core.zst", written, program)


def ask(target: Target, words: str) -> list[Any]:
    """Return the JSON of a command without the fields that name the target, and without the elapsed time."""
    out = io.StringIO()
    session = Session(target)
    commands.execute(lambda: session, [*words.split(), "--json"], out)
    return [plain(json.loads(line)) for line in out.getvalue().splitlines()]


def plain(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: plain(value) for key, value in found.items() if key not in ("target", "seconds", "residency")}
    return [plain(one) for one in found] if isinstance(found, list) else found


def remove_track(answer: Any) -> Any:
    """Return the result without the suggestion to run `track`, which exists only for a process."""
    made = json.loads(json.dumps(answer))
    for one in made:
        for found in (one, *one.get("findings", ())):
            if "next" in found:
                found["next"] = [words for words in found["next"] if not words.startswith("track ")]
    return made


def expect_excluded(answer: Any, at: int) -> Any:
    """Return the expected result of the core for a result of the copy. The core lacks the memory at an address that the process excluded
    from dumps, so the result is not trusted, and a warning gives the reason."""
    where, excluding = f"{at:#x}-{at + 16 * PAGE:#x}", "because the process excluded it from dumps (MADV_DONTDUMP)"
    why = f"64 KiB of memory is not in the core ({where}), {excluding}: pointers in it are not seen."
    made = remove_track(answer)
    if len(made) > 1 and "command" not in made[-1]:
        made.append({"schema": "findleaks/1", "command": "blocks", "warnings": [why]})
    for one in made:
        if "warnings" in one:
            one["warnings"] = [why]
        if "trusted" in one:
            one["trusted"] = False
        for finding in one.get("findings", ()):
            if finding.get("evidence", {}).get("trusted"):
                finding["evidence"]["trusted"] = False
                finding["text"] += " Memory is missing or corrupt: these blocks may be referenced from there."
    return made


def pages(target: Target, start: int, size: int) -> dict[int, bytes]:
    """Return the output of `pieces` for a range, without pages of zeros."""
    found = {}
    for piece in target.pieces(start, start + size):
        for at in range(0, len(piece.data), PAGE):
            data = bytes(piece.data[at : at + PAGE])
            if data.strip(b"\0"):
                found[piece.address + at] = data
    return found


def as_the_process(core: CoreTarget, shown: Pictures) -> None:
    """Check that the core has the regions, threads, memory and pages of the copy."""
    live = shown.live
    assert list(core.regions()) == list(live.regions())
    assert list(core.threads()) == list(live.threads())
    assert core.thread_names() == live.thread_names()
    assert sorted(core.thread_names().values()) == sorted(["kinds", *(f"worker {number}" for number in range(THREADS))])
    assert dict(core.auxv) == dict(live.auxv)
    assert [(module.start, module.path, module.build_id) for module in core.modules()] == [
        (module.start, module.path, module.build_id) for module in live.modules()
    ]
    assert (core.taken_at, core.start_time) == (live.taken_at, live.start_time)
    assert core.start_time
    mine, theirs = core.presence(lambda part: None), live.presence(lambda part: None)
    assert mine is not None
    assert theirs is not None
    assert mine.source == "note of the core"
    for one, other in zip(mine[1:4], theirs[1:4]):
        assert one.words == other.words
    assert mine[4:] == theirs[4:]
    for name, (start, size) in shown.at.items():
        assert core.resident(start, start + size) == live.resident(start, start + size), name
        if name not in ("reserved", "closed", "excluded", "unwritten"):
            assert pages(core, start, size) == pages(live, start, size), name
    start, size = shown.at["excluded"]
    assert core.unread == [*live.unread, (start, start + size)] == [(start, start + size)], "what was excluded"
    assert core.read(shown.at["memfd"][0] + 500 * PAGE, 10) == b"not mapped"
    assert core.read(shown.at["written"][0] + 7 * PAGE, 7) == b"written"
    assert core.read(shown.at["closed"][0], 2) == b"cc"


def test_core_gives_the_results_of_the_process(pictures: Pictures) -> None:
    with open_core(str(pictures.core)) as core:
        as_the_process(core, pictures)
        for words, answer in pictures.answers.items():
            assert ask(core, words) == expect_excluded(answer, pictures.at["excluded"][0]), words


def test_compressed_core_gives_the_results_of_the_process(pictures: Pictures) -> None:
    assert pictures.packed.stat().st_size < pictures.core.stat().st_blocks * 512 / 2
    with open_core(str(pictures.packed)) as core:
        as_the_process(core, pictures)
        for words in ("find", "verdict"):
            assert ask(core, words) == expect_excluded(pictures.answers[words], pictures.at["excluded"][0]), words


def test_packed_by_the_program(pictures: Pictures, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    write_core(pictures.live, str(tmp_path / "core.zst"), compress=True)
    subprocess.run(["zstd", "-dqf", "--sparse", tmp_path / "core.zst", "-o", tmp_path / "core"], check=True)
    assert (tmp_path / "core").read_bytes() == pictures.core.read_bytes()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TargetError, match="install the zstd program"):
        write_core(pictures.live, str(tmp_path / "other"), compress=True)
    assert sorted(os.listdir(tmp_path)) == ["core", "core.zst"]


def test_core_is_sparse_and_private(pictures: Pictures) -> None:
    found = pictures.core.stat()
    assert found.st_mode & 0o7777 == 0o600
    assert pictures.written.size == found.st_size
    assert pictures.written.threads == THREADS + 1
    assert pictures.written.memory < 3 << 20, "the touched pages and the written file mappings"
    assert found.st_blocks * 512 < pictures.written.memory + (256 << 10)
    assert found.st_size > 64 << 20, "a hole where nothing was touched"
    text = subprocess.run(["readelf", "-lW", pictures.core], stdout=subprocess.PIPE, check=True, text=True).stdout
    kept = {int(row[2], 16): int(row[4], 16) for row in (line.split() for line in text.splitlines()) if row[:1] == ["LOAD"]}
    for name, size in (("reserved", 0), ("excluded", 0), ("unwritten", 0), ("untouched", 1 << 26), ("written", 64 * PAGE)):
        assert kept.get(pictures.at[name][0], size) == size, name


GDB = (
    "info threads",
    "thread apply all -q frame",
    'thread apply all -q printf "r12 %#lx %#lx\\n", $r12, $xmm15.v2_int64[0]',
    "info proc mappings",
)


def test_gdb(pictures: Pictures) -> None:
    at = pictures.at
    reads = [f"x/s {at['written'][0] + 7 * PAGE:#x}", f"x/s {at['memfd'][0] + 1000 * PAGE:#x}", f"x/gx {at['untouched'][0]:#x}"]
    said = debuggers.gdb([*GDB, *reads, "leaks blocks --state all --json"], str(pictures.program), str(pictures.core))
    assert said.count(" in work (") == 2 * THREADS
    for number in range(THREADS):
        assert f"r12 {0x123400000000 + 16 * number:#x} {0x123400000000 + 16 * number:#x}" in said
    assert f"{at['written'][0]:#x}" in said.split("Mapped address spaces")[1]
    assert '"written"' in said
    assert '"mapped"' in said
    assert "0x0000000000000000" in said
    wanted = expect_excluded(pictures.answers["blocks --state all"], at["excluded"][0])
    assert [plain(json.loads(line)) for line in debuggers.objects(said)] == wanted


def test_lldb(pictures: Pictures) -> None:
    at = pictures.at
    words = ["thread list", "bt all", f"x/s {at['written'][0] + 7 * PAGE:#x}", f"x/s {at['memfd'][0] + 1000 * PAGE:#x}"]
    reads = [f"thread select {number + 2}\nregister read r12" for number in range(THREADS)]
    said = debuggers.lldb([*words, *reads, "leaks blocks --state all --json"], str(pictures.program), "-c", str(pictures.core))
    assert said.count("kinds`work") >= 2 * THREADS
    assert all(f"0x{0x123400000000 + 16 * number:016x}" in said for number in range(THREADS))
    assert '"written"' in said
    assert '"mapped"' in said
    wanted = expect_excluded(pictures.answers["blocks --state all"], at["excluded"][0])
    assert [plain(json.loads(line)) for line in debuggers.objects(said)] == wanted


def test_state_of_each_block(tmp_path: Path) -> None:
    """`find` on a core of the truth program, plain and compressed, reports the state that the program expects for each block."""
    program = tmp_path / "truth"
    subprocess.run(["gcc", "-g", "-O1", "-pthread", "-o", program, truth.PROGRAMS / "truth.c"], check=True)
    with Running([str(program), "4", "1", "1"], tmp_path / "run") as run:
        records = truth.parse(run.output)
        with attach(run.pid) as live:
            for name, compress in (("core", False), ("core.zst", True)):
                write_core(live, str(tmp_path / name), compress)
        for target in (["--pid", str(run.pid)], [str(tmp_path / "core")], [str(tmp_path / "core.zst")]):
            blocks, warnings = truth.ask(*target)
            found = evidence.explain(truth.compare(records, blocks), records, blocks, tmp_path / "core", own_files(program))
            assert found.perfect, f"{target}: {found}"
            assert warnings == []


@pytest.fixture
def sleeping(pictures: Pictures, tmp_path: Path) -> Iterator[Running]:
    """Start another process that the test stops and ends."""
    with Running([str(pictures.program), "2", str(pictures.program.parent / "data")], tmp_path / "run") as run:
        (tmp_path / "cores").mkdir()
        yield run


def test_without_memory_for_a_copy(sleeping: Running, tmp_path: Path) -> None:
    """Without memory for a copy, the core is written while the process is stopped. It has the same content, except for registers that
    show how the process was stopped."""
    made = tmp_path / "cores"
    with LiveTarget(sleeping.pid, stopped=False) as live:
        found = write_core(live, str(made / "stopped"))
        assert found.threads == 3
    with attach(sleeping.pid) as copy:
        write_core(copy, str(made / "copied"))
    with open_core(str(made / "stopped")) as one, open_core(str(made / "copied")) as other:
        for words in ("find", "blocks --state all", "roots --limit 0", "stacks"):
            assert ask(one, words) == ask(other, words)
        rows = [line.split() for line in sleeping.output.splitlines() if " 0x" in line]
        for name, start, size in [(row[0], int(row[1], 16), int(row[2])) for row in rows]:
            if name not in ("reserved", "excluded", "closed"):
                assert pages(one, start, size) == pages(other, start, size), name


def test_the_process_ends_while_it_is_read(sleeping: Running, tmp_path: Path) -> None:
    def end(part: float) -> None:
        if part:
            os.kill(sleeping.pid, signal.SIGKILL)
            while Path(f"/proc/{sleeping.pid}/maps").read_bytes():
                pass

    with LiveTarget(sleeping.pid, stopped=False) as live, pytest.raises(TargetError) as caught:
        write_core(live, str(tmp_path / "cores" / "core"), progress=end)
    assert str(caught.value) == f"pid {sleeping.pid}: the process has ended while it was read"
    assert os.listdir(tmp_path / "cores") == []


def test_the_process_ends_after_it_was_copied(sleeping: Running, tmp_path: Path) -> None:
    path = tmp_path / "cores" / "core"
    with attach(sleeping.pid) as copy:
        before = remove_track(ask(copy, "find"))
        os.kill(sleeping.pid, signal.SIGKILL)
        while Path(f"/proc/{sleeping.pid}/maps").read_bytes():
            pass
        write_core(copy, str(path))
    with open_core(str(path)) as core:
        assert ask(core, "find") == before
        assert len(core.threads()) == 3


def test_ctrl_c_keeps_the_old_file(sleeping: Running, tmp_path: Path) -> None:
    path = tmp_path / "cores" / "core"
    path.write_text("from before")

    def press(part: float) -> None:
        if part:
            raise KeyboardInterrupt

    for compress in (False, True):
        with attach(sleeping.pid) as copy, pytest.raises(KeyboardInterrupt):
            write_core(copy, str(path), compress, progress=press)
    assert os.listdir(path.parent) == ["core"]
    assert path.read_text() == "from before"


@pytest.mark.parametrize("compress", [False, True])
def test_file_size_limit(sleeping: Running, tmp_path: Path, compress: bool) -> None:
    """If `ulimit -f` limits the file, as if the disk were full, findleaks prints one line and leaves no file."""
    script = WRITER.replace("progress=progress", f"progress=progress, compress={compress}")
    done = subprocess.run(
        [sys.executable, "-c", script, str(sleeping.pid), str(tmp_path / "cores" / "core")],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16)),
    )
    assert done.stdout.startswith(f"{tmp_path}/cores/core: the core exceeds the largest file size (ulimit -f")
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""
    assert os.listdir(tmp_path / "cores") == []


def test_findleaks_is_killed(sleeping: Running, tmp_path: Path) -> None:
    """If findleaks is killed while it writes, no file has the name of the core, and the process continues."""
    path = tmp_path / "cores" / "core"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(sleeping.pid), str(path), "slowly"], stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"writing\n"
        writer.kill()
    assert not path.exists()
    assert all(name.startswith(".core.") and name.endswith(".part") for name in os.listdir(path.parent))
    assert "TracerPid:\t0\n" in Path(f"/proc/{sleeping.pid}/status").read_text()
    until(lambda: states(sleeping.pid) == {"S"}, "the process to sleep on")
    with attach(sleeping.pid) as copy:
        write_core(copy, str(path))
    assert path.exists()
