"""`triage --scheduler`: the workers of a dask.distributed cluster read the cores, and are killed meanwhile."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import commandline
import pytest
import triaged

SAMPLE = Path(__file__).parents[2] / "cores" / "sample.core.gz"
CORES = 10
Rows = list[dict[str, object]]


class Cluster:
    """A dask cluster: a scheduler and two workers. A nanny restarts a worker that ends. One process runs both nannies."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: list[subprocess.Popen[bytes]] = []
        self.address = self._wait(
            self._start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"), rb"Scheduler at:\s+(tcp://\S+)"
        )
        words = ("--nworkers", "2", "--nthreads", "1", "--no-dashboard", "--nanny", "--local-directory", str(folder / "workers"))
        self._wait(self._start("worker", self.address, *words), rb"Registered to:\s+(tcp://\S+)")

    def _start(self, *words: str) -> Path:
        log = self.folder / f"log{len(self.processes)}"
        with log.open("wb") as out:
            command = [sys.executable, "-m", "distributed.cli.dask_" + words[0], *words[1:]]
            self.processes.append(subprocess.Popen(command, stdout=out, stderr=out, cwd=self.folder, start_new_session=True))
        return log

    def _wait(self, log: Path, pattern: bytes) -> str:
        limit = time.monotonic() + commandline.PATIENCE
        while time.monotonic() < limit and self.processes[-1].poll() is None:
            found = re.search(pattern, log.read_bytes())
            if found:
                return found[1].decode()
            time.sleep(0.05)
        raise RuntimeError(log.read_text())

    def workers(self) -> list[int]:
        """Return the processes of the workers."""
        return _workers(self.processes[1].pid)

    def end(self) -> None:
        for process in self.processes:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _children(pid: int) -> list[int]:
    try:
        return [int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split()]
    except OSError:
        return []


def _workers(nanny: int) -> list[int]:
    return [child for child in _children(nanny) if b"spawn_main" in _command(child)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    yield made
    made.end()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("cores")
    for number in range(CORES - 2):
        os.link(SAMPLE, made / f"core.{number:02}") if os.stat(SAMPLE).st_dev == os.stat(made).st_dev else (
            made / f"core.{number:02}"
        ).write_bytes(SAMPLE.read_bytes())
    (made / "empty").touch()
    os.mkfifo(made / "pipe")
    return made


@pytest.fixture(scope="module")
def local(folder: Path) -> Rows:
    """Return the rows that `triage` writes without a cluster."""
    done = commandline.run(["triage", "--json", str(folder)], os.environ)
    assert done.returncode == 0, done.stderr
    return triaged.table(triaged.parse_rows(done.stdout)[0].values())


def test_workers_that_are_killed_lose_no_core_and_count_none_twice(cluster: Cluster, folder: Path, local: Rows, tmp_path: Path) -> None:
    check_killed(cluster.address, cluster.workers, folder, local, tmp_path)


LOCAL_CLUSTER = """
import sys
from distributed import LocalCluster

if __name__ == "__main__":
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, local_directory=sys.argv[1]) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


@pytest.mark.matrix
def test_workers_of_a_local_cluster_are_killed(folder: Path, local: Rows, tmp_path: Path) -> None:
    """A local cluster, as programs and notebooks start it: the scheduler and the nannies are threads of the program."""
    (tmp_path / "starts.py").write_text(LOCAL_CLUSTER)
    command = [sys.executable, tmp_path / "starts.py", tmp_path / "workers"]
    with (
        open(tmp_path / "log", "wb") as log,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, start_new_session=True) as starts,
    ):
        assert starts.stdin is not None and starts.stdout is not None
        try:
            address = starts.stdout.readline().decode().strip()
            check_killed(address, lambda: _workers(starts.pid), folder, local, tmp_path)
            starts.stdin.close()
            starts.wait(commandline.PATIENCE)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(starts.pid, signal.SIGKILL)


def check_killed(address: str, workers: Callable[[], list[int]], folder: Path, local: Rows, scratch: Path) -> None:
    """Run triage while workers are killed. Check that every core has one row, the same as without a cluster."""
    command = [sys.executable, "-m", "findleaks", "triage", "--json", "--scheduler", address, "-o", scratch / "a.db", folder]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        lines = []
        for number, line in enumerate(process.stdout):
            lines.append(line)
            if number in (2, 5):
                found = _wait_for_workers(workers)
                os.kill(found[number % len(found)], signal.SIGKILL)
        errors = process.stderr.read()
    assert process.returncode == 0, errors
    assert errors == ""
    rows, last = triaged.parse_rows("".join(lines))
    assert len(rows) == CORES and last["left"] == 0
    assert triaged.table(rows.values()) == local
    assert len(triaged.tables(scratch / "a.db")["cores"]) == CORES


def _wait_for_workers(workers: Callable[[], list[int]]) -> list[int]:
    """Return the workers after at least one has started."""
    limit = time.monotonic() + commandline.PATIENCE
    while not (found := workers()) and time.monotonic() < limit:
        time.sleep(0.05)
    return found


def test_ctrl_c_leaves_the_cluster_as_it_was(cluster: Cluster, folder: Path, local: Rows, tmp_path: Path) -> None:
    """Remaining tasks are cancelled, and the next run is complete."""
    words = ["--json", "--scheduler", cluster.address, "-o", str(tmp_path / "a.db")]
    with open(tmp_path / "errors", "w+") as errors:
        command = [sys.executable, "-m", "findleaks", "triage", *words, str(folder)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
            assert process.stdout is not None
            first = process.stdout.readline()
            os.kill(process.pid, signal.SIGINT)
            output = process.stdout.read()
        errors.seek(0)
        assert not errors.read()
    rows, last = triaged.parse_rows(first + output)
    assert last["left"] == CORES - len(rows)
    assert process.returncode == 130 or not last["left"]  # on a busy machine, all cores may have been read before the signal
    done = commandline.run(["triage", *words, "--resume", str(folder)], os.environ)
    assert done.returncode == 0, done.stderr
    assert triaged.table(triaged.parse_rows(done.stdout)[0].values()) == local


def test_missing_scheduler_gives_one_line() -> None:
    done = commandline.run(["triage", "--scheduler", "tcp://127.0.0.1:9", str(SAMPLE)], os.environ)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and "no scheduler answers" in done.stderr
