"""The example in the --help of each command works, after its process, core and address are replaced by real ones."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from debuggers import environment
from grows import FINDLEAKS

from cores import Running
from findleaks import cli
from findleaks.catalogue import CATALOGUE

SOURCE = Path(__file__).parents[1] / "programs" / "help_examples.c"
ADDRESS = "0x55d0c0a012a0"
NOTHING_MANAGED = {
    "runtime": "no managed runtime found",
    "scopes": "no handle scopes can be read: no readable loaded file contains V8",
}
"""Messages of commands that need a managed runtime, on a C program."""


def example(word: str) -> list[str]:
    """Return the words of the example after "findleaks"."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert cli.main([word, "--help"]) == 0
    line = out.getvalue().split("Example:\n")[1]
    program, *words = line.split()
    assert program == "findleaks"
    assert words[0] == word
    return words


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Start the program in a folder with its core, "core", and a folder of cores, "crash"."""
    folder = tmp_path_factory.mktemp("examples")
    subprocess.run(["gcc", "-g", "-O1", "-o", folder / "program", SOURCE], check=True)
    with Running([str(folder / "program")], folder) as run:
        (folder / "core").symlink_to(run.gcore())
        (folder / "crash").mkdir()
        (folder / "crash" / "core").hardlink_to((folder / "core").resolve())
        yield run


def run(running: Running, words: list[str], patience: float = 180) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*FINDLEAKS, *words], cwd=running.folder, env=environment(), capture_output=True, text=True, timeout=patience, check=False
    )


@pytest.mark.parametrize("word", [word for word, entry in CATALOGUE.items() if not entry.live])
def test_an_example_on_a_core(word: str, running: Running) -> None:
    words = [{ADDRESS: running.output.split()[0], "/var/crash": "crash"}.get(one, one) for one in example(word)]
    assert word == "triage" or words[-1] == "core"
    if word == "diff" and not (running.folder / f"{words[1]}.snapshot").exists():  # the example of `snapshot` creates this file
        assert run(running, example("snapshot")).returncode == 0
    done = run(running, words)
    if word in NOTHING_MANAGED:
        assert (done.returncode, NOTHING_MANAGED[word] in done.stdout) == (2, True), done.stdout
    else:
        assert (done.returncode, done.stderr.count("findleaks: ")) == (0, 0), done.stderr
        assert done.stdout or word == "snapshot"


@pytest.mark.parametrize("word", [word for word, entry in CATALOGUE.items() if entry.live])
def test_an_example_on_a_process(word: str, running: Running) -> None:
    """Run the example with a shorter interval."""
    words = [{"4711": str(running.pid), "10": "1"}.get(one, one) for one in example(word)]
    assert words[-2:] == ["--pid", str(running.pid)]
    if "--for" in words:
        done = run(running, words)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout
        return
    with subprocess.Popen([*FINDLEAKS, *words], cwd=running.folder, env=environment(), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert f"pid {running.pid}" in process.stdout.readline()
        os.kill(process.pid, signal.SIGINT)  # ends with Ctrl-C, as the help says
        process.stdout.read()
    assert process.returncode == 0
