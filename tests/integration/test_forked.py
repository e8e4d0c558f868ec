"""A process is read from a copy-on-write clone. findleaks sees its memory at the time of the stop, and does not change the process."""

from __future__ import annotations

import gc
import io
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import accuracy
import agree
import pytest
import truth
from counting import COUNTER, Counter, compile_sources, counters, wait_for
from descriptors import open_descriptors
from forked import THREADS, Watched, build, make_starter

from cores import Running
from findleaks import commands
from findleaks.errors import TargetError
from findleaks.injection import cloning
from findleaks.injection.cloning import Cloning
from findleaks.injection.forked import ForkedProcess, fork
from findleaks.injection.held_clone import HeldClone
from findleaks.session import Session
from findleaks.target.arch import X86_64
from findleaks.target.copied import CopiedProcess, attach
from findleaks.target.ptrace import Tracer, has_ended, state

PAGE = 4096
PATIENCE = 60


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = compile_sources(tmp_path_factory.mktemp("programs"), counter=COUNTER)
    subprocess.run(["gcc", "-O1", *accuracy.FLAGS, "-pthread", "-o", folder / "truth", accuracy.SOURCE], check=True)
    return build(folder).parent


@pytest.fixture
def watched(programs: Path) -> Iterator[Callable[..., Watched]]:
    with make_starter(programs / "forked") as make:
        yield make


@pytest.fixture
def counter(programs: Path) -> Iterator[Callable[..., Counter]]:
    with counters(programs / "counter") as make:
        yield make


def answers(target: CopiedProcess) -> list[Any]:
    """Run find, blocks, roots and stacks with --json on the process. Return the parsed output."""
    found = []
    for words in (["find"], ["blocks"], ["roots"], ["stacks"]):
        out = io.StringIO()
        session = Session(target)
        assert commands.execute(lambda session=session: session, [*words, "--json"], out, width=80) == 0  # type: ignore[misc]
        found += [json.loads(line) for line in out.getvalue().splitlines()]
    for one in found:
        one.pop("seconds", None)
    return found


@pytest.mark.platform("x86-64", "`--fork`")
def test_results_equal_those_of_a_copy(programs: Path, tmp_path: Path) -> None:
    """A program that prints its blocks and sleeps: results from a clone (blocks, roots, stacks, memory, registers) equal results from a
    copy."""
    with Running([str(programs / "truth"), "3", "4", "1", ""], tmp_path / "run") as run:
        records = truth.parse(run.output)
        with attach(run.pid) as copy, fork(run.pid) as forked:
            assert isinstance(copy, CopiedProcess)
            agree.check_agree(copy, forked)
            assert (forked.unread, forked.warnings, forked.auxv) == (copy.unread, copy.warnings, copy.auxv)
            assert forked.thread_names() == copy.thread_names()
            assert forked.presence(lambda part: None) is not None
            expected, found = answers(copy), answers(forked)
        assert found == expected
        blocks = {int(row["address"], 16): row for row in found if "state" in row}
        assert len(records) > 1000
        assert {record.address for record in records if record.state == "in-use"} <= set(blocks)


def test_later_writes_are_not_visible(watched: Callable[..., Watched]) -> None:
    one = watched()
    clone = HeldClone(one.pid, lambda part: None)
    try:
        pid = clone.taken.clone
        assert one.all_children() == [str(pid)]
        assert os.listdir(f"/proc/{pid}/fd") == []
        with open(f"/proc/{pid}/mem", "rb") as memory:
            first = os.pread(memory.fileno(), 8, one.at["ticks"])
            for _ in range(3):
                assert one.runs()
                assert os.pread(memory.fileno(), 8, one.at["ticks"]) == first
        assert int.from_bytes(first, "little") < one.read("ticks")
        assert state(pid, pid) == "t"
    finally:
        clone.end()
    assert not Path(f"/proc/{pid}").exists()
    assert len(clone.stops) == 2
    assert one.unharmed()
    with fork(one.pid) as forked:
        before = forked.word(one.at["ticks"])
        assert one.runs()
        assert forked.word(one.at["ticks"]) == before
        assert forked.stopped == sum(forked.stops) > 0
        assert forked.run_on(0.01)
        assert forked.word(one.at["ticks"]) > before
        one.end()
        assert len(forked.threads()) == 2


def pages(target: ForkedProcess, start: int, size: int) -> list[str]:
    """Return the text on each page; "" if the page cannot be read."""
    found = {}
    for piece in target.pieces(start, start + size):
        for at in range(0, len(piece.data), PAGE):
            found[piece.address + at] = bytes(piece.data[at : at + 64]).split(b"\0")[0].decode()
    return [found.get(at, "") for at in range(start, start + size, PAGE)]


def test_memory_that_a_clone_lacks_or_shares(watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch) -> None:
    one = watched("kept")

    def check(forked: ForkedProcess) -> None:
        for name, size in (("dontfork", 64), ("wiped", 64), ("shared", 64), ("private", 64), ("large", 10 << 10)):
            expected = [f"{name} page {page}" for page in range(size)]
            assert pages(forked, one.at[name], size * PAGE) == expected, name

    with fork(one.pid) as forked:
        check(forked)
        assert forked.unread == []
        (warning,) = forked.warnings
        assert warning.startswith(f"pid {one.pid}: 40 MiB of shared memory may be newer than the rest")
    # If findleaks did not know before the stop which memory the clone lacks, this memory is unread, not zeros.
    monkeypatch.setattr(cloning, "check_clonable", lambda pid: {})
    (taken,) = clone_process(one.pid, 1)
    assert {gap.start: gap.end - gap.start for gap in taken.absent} == {one.at["dontfork"]: 64 * PAGE, one.at["wiped"]: 64 * PAGE}
    assert one.unharmed()


def clone_process(pid: int, times: int) -> list[cloning.Taken]:
    """Clone the process `times` times in this process, which saves the start of a helper each time."""
    found = []
    memory = os.memfd_create("shared")
    try:
        for _ in range(times):
            one = Cloning(pid, memory, lambda: False)
            try:
                taken = one.take()
                assert state(taken.clone, taken.clone) == "t"
                found.append(taken)
            finally:
                gc.enable()
                while one.watch():
                    pass
                one.end()
            assert not Path(f"/proc/{taken.clone}").exists()
    finally:
        os.close(memory)
    return found


def test_running_threads_are_unharmed(watched: Callable[..., Watched]) -> None:
    """Registers, flags, the red zone, malloc, child processes and their signals, and system calls with a timeout are unchanged."""
    one = watched("busy")
    assert wait_for(lambda: all(one.words("rounds")))
    before = one.looks()
    clone_process(one.pid, 100)
    after = one.words("rounds")
    assert dict(zip(THREADS, one.words("bad"))) == dict.fromkeys(THREADS, 0)
    assert one.words("foreign", 1) == [0]
    assert wait_for(lambda: all(now > then for now, then in zip(one.words("rounds"), after)))
    looks = one.looks()
    for lasting in (before, looks):
        lasting.pop("ShdPnd")  # for the children that the program forks
    assert looks == before


def test_a_storm_of_signals(watched: Callable[..., Watched]) -> None:
    one = watched("storm")
    assert wait_for(lambda: one.read("signals") > 10)
    before = one.read("signals")
    clone_process(one.pid, 20)
    assert wait_for(lambda: one.read("signals") > before + 20)
    assert one.unharmed()


def test_a_stopped_process_an_ended_main_thread_and_a_vfork(counter: Callable[..., Counter]) -> None:
    one = counter()
    os.kill(one.pid, signal.SIGSTOP)
    assert wait_for(lambda: state(one.pid, one.pid) == "T")
    clone_process(one.pid, 1)
    assert wait_for(lambda: state(one.pid, one.pid) == "T")
    os.kill(one.pid, signal.SIGCONT)
    assert one.runs()
    orphan = counter("orphan")
    assert wait_for(lambda: state(orphan.pid, orphan.pid) == "Z")
    with fork(orphan.pid) as forked:
        assert forked.word(orphan.at["ticks"]) > 0
    assert orphan.runs()
    waiting = counter("vfork")
    assert wait_for(lambda: len(waiting.children()) == 1)
    (child,) = waiting.children()
    clone = HeldClone(waiting.pid, lambda part: None)
    try:
        assert "sleep uninterruptibly" in clone.taken.warnings[0]
        os.kill(child, signal.SIGKILL)
        # The thread would stop when it wakes. It must continue while the clone still exists.
        assert wait_for(lambda: state(waiting.pid, waiting.pid) == "S")
    finally:
        clone.end()
    assert [pid for pid in waiting.children() if pid != child] == []
    assert waiting.runs()


def test_threads_that_only_wait_for_a_processor_are_waited_for(counter: Callable[..., Counter]) -> None:
    """The time limit for threads in uninterruptible sleep is 0, because no thread of the program is in it."""
    one = counter("crowd")
    assert wait_for(lambda: len(os.listdir(f"/proc/{one.pid}/task")) == 202)
    tracer = Tracer(one.pid, X86_64)
    try:
        tracer.stop_all(0)
        assert tracer.warnings == []
        assert len(tracer.threads) == 202
    finally:
        assert tracer.detach_all()
    assert one.runs()


@pytest.mark.skipif(os.geteuid() != 0, reason="takes a pid namespace, which only root can make")
def test_a_process_in_a_pid_namespace(programs: Path) -> None:
    """The process has number 1 in its pid namespace, so orphaned processes would become its children. Its clone has another number in the
    namespace."""
    one = Watched(["unshare", "--fork", "--pid", "--kill-child", str(programs / "forked")])
    try:
        (one.pid,) = one.children()
        clone = HeldClone(one.pid, lambda part: None)
        taken = clone.taken
        assert 1 < taken.local != taken.clone
        clone.end()
        assert not Path(f"/proc/{taken.clone}").exists()
        assert one.unharmed()
    finally:
        one.end()


KILLED = """
import os, signal, sys
from findleaks.injection import forked, held_clone
pid, point = int(sys.argv[1]), sys.argv[2]

def dies(*given):
    os.kill(os.getpid(), signal.SIGKILL)

if point == "started":
    held_clone._Helper.report = dies
elif point == "taken":
    forked.ForkedProcess._copy_clone = dies
elif point == "copying":
    forked.Transfer._vector = dies
elif point == "copied":
    held_clone._Helper.ask_to_end = dies
print("begun", flush=True)
forked.fork(pid)
print("ended", flush=True)
"""


def helpers(pid: int) -> list[str]:
    """Return the helper processes that hold clones of the process."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{name}/cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if len(words) > 4 and words[2].endswith(b"/clone_holder.py") and words[4] == b"%d" % pid:
            found.append(name)
    return found


def test_sigkill_leaves_nothing(watched: Callable[..., Watched]) -> None:
    """After SIGKILL at the critical points and at random points, no clone and no helper is left."""
    one = watched()
    chance = random.Random(20)
    for point in ("started", "taken", "copying", "copied", "later", "later"):
        child = subprocess.Popen([sys.executable, "-c", KILLED, str(one.pid), point], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        child.stdout.readline()
        if point == "later":
            with suppress(subprocess.TimeoutExpired):
                child.wait(chance.random() * 0.2)
            child.kill()
        assert child.wait(PATIENCE) == -signal.SIGKILL or point == "later"
        child.stdout.close()
        assert wait_for(lambda: not helpers(one.pid))
        assert one.unharmed()


def test_a_killed_helper_is_replaced(watched: Callable[..., Watched]) -> None:
    one = watched()
    clone = HeldClone(one.pid, lambda part: None)
    pid = clone.taken.clone
    os.kill(clone.holder, signal.SIGKILL)
    assert wait_for(lambda: state(pid, pid) == "Z")  # the clone was continued, and ended by itself
    code = int(Path(f"/proc/{pid}/stat").read_text().split()[-1])
    assert code == 0  # no signal ended the process
    clone.end()
    assert not Path(f"/proc/{pid}").exists()
    assert one.unharmed()


def test_a_killed_clone_is_reported(watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch) -> None:
    one = watched()
    copied = ForkedProcess._copy_clone

    def killed(self: ForkedProcess, clone: HeldClone) -> Any:
        os.kill(clone.taken.clone, signal.SIGKILL)
        assert wait_for(lambda: has_ended(clone.taken.clone))
        return copied(self, clone)

    monkeypatch.setattr(ForkedProcess, "_copy_clone", killed)
    with pytest.raises(TargetError) as caught:
        fork(one.pid)
    assert str(caught.value) == f"pid {one.pid}: its clone was killed while it was copied"
    assert one.unharmed()


def test_ctrl_c_while_it_is_copied(watched: Callable[..., Watched], monkeypatch: pytest.MonkeyPatch) -> None:
    one = watched()
    files = open_descriptors()

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("findleaks.injection.forked.Transfer.run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fork(one.pid)
    assert one.unharmed()
    with pytest.raises(KeyboardInterrupt):
        fork(one.pid, interrupted)
    assert wait_for(lambda: not helpers(one.pid))
    assert one.unharmed()
    assert open_descriptors() == files
