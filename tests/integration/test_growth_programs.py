"""Programs over time: Node that leaks handles, a JVM whose arenas keep freed memory, and servers that do not grow under load."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path

import jvms
import nodes
import pytest
import real
import truth
from debuggers import run_cli
from growing import Rounds, run_diff

CLOSES = 100_000
BLOCK = 1022 * 8
JVM = (
    *("-Xms24m", "-Xmx24m", "-XX:+AlwaysPreTouch", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    *("-XX:CompressedClassSpaceSize=16m", "-XX:ReservedCodeCacheSize=16m"),
)


def first_line(text: str) -> str:
    """Return the headline, which may have several lines on a terminal."""
    return " ".join(text.split()).partition(" BEFORE ")[0]


@pytest.mark.matrix
def test_node_that_leaves_a_handle_of_each_close(tmp_path: Path) -> None:
    """Node 0.10.21 leaks a handle for each close: two cores, 100,000 closes and half an hour apart."""
    with Rounds([nodes.get("0.10.21"), str(truth.PROGRAMS / "growth_closing.js")], tmp_path) as one:
        one.round(2 * CLOSES)  # the heap of a program that has run for some time
        first = one.core("first", 0)
        one.round(CLOSES)
        last = one.core("last", 0.5)
    kept = [tmp_path / f"{core.stem}.snapshot" for core in (first, last)]
    for core, path in zip((first, last), kept):
        run_cli("snapshot", "-o", str(path), str(core), check=True)
        core.unlink()  # out of 600 MB
    answer, text = run_diff(*kept)
    (row,) = [row for row in answer["grown"] if "handles" in [row["what"], *(part["what"] for part in row["inside"])]]
    handles = next(part for part in [row, *row["inside"]] if part["what"] == "handles")
    before, after = handles["counts"]
    assert after - before == CLOSES
    assert handles["delta"] in [blocks * BLOCK for blocks in (CLOSES // 1022, CLOSES // 1022 + 1)]
    assert row["per_hour"]["rate"] == pytest.approx(2 * row["delta"])
    assert f", V8's handle-scope blocks (isolate 1), {before:,} → {after:,} handles" in first_line(text)
    assert "; what grew most: + " in first_line(text)
    assert " an hour, V8's handle-scope blocks" in first_line(text)


def test_jvm_whose_threads_come_and_go(tmp_path: Path) -> None:
    """Memory that threads freed stays in glibc's arenas: the process grows, and nothing leaks."""
    jvms.compile_java(truth.PROGRAMS / "GrowthChurn.java", tmp_path)
    with Rounds(["java", *JVM, "-cp", str(tmp_path), "GrowthChurn"], tmp_path / "run") as one:
        one.round(1)
        first = one.snapshot("first")
        one.round(32)
        last = one.snapshot("last")
    answer, text = run_diff(first, last)
    row = answer["grown"][0]
    assert row["name"].startswith("glibc ")
    assert row["name"].endswith(": kept")
    assert row["delta"] > answer["total"]["delta"] / 2 > 1 << 20
    assert ": free and not returned, " in first_line(text)
    assert "  1. Not a leak: the allocator keeps free memory, + " in text
    assert not any(row["what"] == "lost" and row["delta"] > 64 << 10 for row in answer["grown"])


def send_command(port: int, words: bytes) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=60) as wire:
        wire.sendall(words)
        while wire.recv(1 << 16):
            pass


def overwrite_keys(at: int) -> bytes:
    """Set the same keys of Redis repeatedly, and fill and empty a list."""
    words = (f"SET key{key % 300} {'v' * (key % 200)}\r\nGET key{key % 300}\r\nLPUSH all x\r\nLPOP all\r\n" for key in range(1200))
    return "".join(words).encode() + b"QUIT\r\n"


def add_keys(at: int) -> bytes:
    """Set new keys of Redis each time."""
    return "".join(f"SET more{at}:{key} {'v' * 100}\r\n" for key in range(4000)).encode() + b"QUIT\r\n"


def load_server(folder: Path, name: str, words: Callable[[int], bytes], times: int, count: int) -> list[Path]:
    """Return snapshots of a server, each taken after this number of requests."""
    made = []
    with real.Idle(real.PROGRAMS[name], folder) as one:
        for at in range(count):
            for _ in range(times):
                send_command(one.port, words(at))
            made.append(folder / f"{at:02}.snapshot")
            run_cli("snapshot", "-o", str(made[-1]), "--pid", str(one.pid), check=True)
    return made


@pytest.mark.parametrize(
    ("name", "words", "times"),
    [
        pytest.param("nginx", lambda at: real.GET, 40, id="nginx"),
        pytest.param("redis", overwrite_keys, 1, id="redis", marks=pytest.mark.matrix),
    ],
)
def test_servers_under_load_do_not_grow(tmp_path: Path, name: str, words: Callable[[int], bytes], times: int) -> None:
    answer, text = run_diff(*load_server(tmp_path, name, words, times, 8))
    assert [row for row in answer["grown"] if row["trend"] == "growing"] == []
    assert "; nothing grows" in first_line(text)
    assert "  1. " not in text


@pytest.mark.matrix
def test_redis_whose_keys_are_never_deleted_grows(tmp_path: Path) -> None:
    answer, text = run_diff(*load_server(tmp_path, "redis", add_keys, 1, 5))
    row = answer["grown"][0]
    assert (row["what"], row["trend"]) == ("root", "growing")
    assert row["delta"] > 4 * 4000 * 100
    assert "still growing at the end" in first_line(text)
    assert "retained by server (" in first_line(text)
