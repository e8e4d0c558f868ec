"""PostgreSQL's memory contexts: findleaks reports the names, numbers and bytes that PostgreSQL prints at the same stop."""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import IO, Any, NamedTuple, Optional

import postgresqls
import pytest
import truth
from debuggers import gdb, lldb, objects, run_cli
from idle import wait_until_idle
from rubies import postgres
from transcripts import follow
from variants import mark_matrix_except

import cores
from findleaks.runtimes.postgresql.instance import PostgreSQL
from findleaks.session import Session
from findleaks.target.core import open_core

LINE = re.compile(
    r"^(?:.*level: (\d+); |( *))(.+): (\d+) total in (\d+) blocks(?: \(\d+ chunks\))?;(?: \d+ empty blocks;)? "
    r"(\d+) free(?: \((\d+) chunks\))?; (\d+) used(?:: (.*))?$",
    re.M,
)
TOTAL = re.compile(r"Grand total: (\d+) bytes in (\d+) blocks; (\d+) free \((\d+) chunks\); (\d+) used")
SHORTENED = 60  # number of characters of an ident that are compared: PostgreSQL shortens long idents, and replaces line feeds
QUIET = {"PGOPTIONS": "-c track_counts=off"}  # without statistics, which an idle session frees after ten seconds
TABLES = 6  # PostgreSQL prints at most 100 contexts that have the same parent


class Backend(NamedTuple):
    release: str
    pid: int
    log: str  # the process, and the contexts that PostgreSQL printed


def ask(port: int, *statements: str) -> str:
    words = ["psql", "-h", "127.0.0.1", "-p", str(port), "-U", "postgres", "-qAt"]
    words += [word for statement in statements for word in ("-c", statement)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return done.stdout


def archive(release: str) -> Optional[Path]:
    return postgresqls.archive(release) if release != postgresqls.INSTALLED else None


@pytest.fixture(scope="module", params=mark_matrix_except((postgresqls.INSTALLED, *postgresqls.RELEASES), postgresqls.INSTALLED))
def backend(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    """A session that uses some tables and then keeps 12 MiB in one context: a prepared statement with a long constant."""
    folder = tmp_path_factory.mktemp("postgres")
    library = folder / "pg_contexts.so"
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", str(truth.PROGRAMS / "pg_contexts.c"), "-o", str(library), "-ldl"], check=True)
    with postgres(folder, archive(request.param), library) as port:
        ask(port, *(f"create table t{number}(id int primary key, v text)" for number in range(TABLES)))
        command = ["psql", "-h", "127.0.0.1", "-p", str(port), "-U", "postgres", "-qAt"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, **QUIET}) as session:
            assert session.stdin is not None and session.stdout is not None
            for number in range(TABLES):
                session.stdin.write(f"select count(*) from t{number};\n")
            session.stdin.write(f"prepare long as select '{'x' * (6 << 20)}';\nselect 'pid', pg_backend_pid();\n")
            session.stdin.flush()
            pid = next(int(line.split("|")[1]) for line in session.stdout if line.startswith("pid"))
            major = int(ask(port, "show server_version_num")) // 10000
            _create_contexts(Path(ask(port, "show data_directory").strip()), session.stdin, pid, major)
            if major > 13:
                ask(port, f"select pg_log_backend_memory_contexts({pid})")
            log = _log(folder / "postgres.log")
            wait_until_idle(pid)  # the memory context of messages is in use until the last line is written
            yield Backend(request.param, pid, log)
            session.stdin.close()


def _create_contexts(data: Path, session: IO[str], pid: int, major: int) -> None:
    """Make the session's backend create contexts (pg_contexts.c), and wait until they exist."""
    request = data / "contexts"
    request.write_text(f"{pid} {major}")
    request.chmod(0o644)
    session.write("select 'pid', 0;\n")
    session.flush()
    limit = time.monotonic() + cores.PATIENCE
    while request.exists():
        assert time.monotonic() < limit, "the backend created no contexts"
        time.sleep(0.05)


def _log(path: Path) -> str:
    limit = time.monotonic() + cores.PATIENCE
    while "Grand total" not in path.read_text():
        assert time.monotonic() < limit, path.read_text()[-2000:]
        time.sleep(0.05)
    return path.read_text()


def run_json(command: str, *where: str) -> dict[str, Any]:
    done = run_cli(command, "--json", *where, *(["--limit", "0"] if command == "runtime" else []))
    assert done.stdout, done.stderr
    body: dict[str, Any] = json.loads(done.stdout)
    return body


def check(backend: Backend, *where: str) -> None:
    """Check that the log has a line for each context, with its name and, at the end, its ident."""
    (one,) = run_json("runtime", *where)["runtimes"]
    assert backend.release in (postgresqls.INSTALLED, one["version"])
    wanted: dict[str, Counter[str]] = {}
    for _, _, name, total, blocks, free, _, used, _ in LINE.findall(backend.log):
        sums = wanted.setdefault(name.split(": ")[0], Counter())
        sums.update({"objects": 1, "bytes": int(total), "blocks": int(blocks), "free": int(free), "used": int(used)})
    assert wanted["index info"]["objects"] > TABLES and wanted["CachedPlanSource"]["bytes"] > 6 << 20
    assert {"Slab test", "Generation test"} <= wanted.keys()
    assert {row["name"]: {"objects": row["objects"], "bytes": row["bytes"], **row["own"]} for row in one["types"]} == wanted
    ((total, blocks, free, chunks, used),) = TOTAL.findall(backend.log)
    counters = one["counters"]
    assert counters == {"Grand total": int(total), "blocks": int(blocks), "free": int(free), "free chunks": int(chunks), "used": int(used)}


def test_contexts_of_a_live_process(backend: Backend) -> None:
    check(backend, "--pid", str(backend.pid))


@pytest.mark.matrix
def test_contexts_in_a_core(backend: Backend, tmp_path: Path) -> None:
    done = subprocess.run(["gcore", "-o", "core", str(backend.pid)], cwd=tmp_path, capture_output=True, text=True, timeout=cores.PATIENCE)
    core = tmp_path / f"core.{backend.pid}"
    assert core.exists(), done.stderr
    check(backend, str(core))
    with closing(Session(open_core(str(core)))) as session:
        (one,) = [runtime for runtime in session.runtimes if isinstance(runtime, PostgreSQL)]
        level, contexts = {0: 0}, []
        for each in one.contexts:
            level[each.address] = level[each.parent.address if each.parent is not None else 0] + 1
            contexts.append((level[each.address], each.name, each.bytes, each.usage.free, each.usage.chunks, each.ident[:SHORTENED]))
    rows = LINE.findall(backend.log)
    first = int(rows[0][0] or 0)  # the level of the outermost context
    depths = [int(level) - first if level else len(spaces) // 2 for level, spaces, *_ in rows]
    printed = [
        (depth + 1, name, int(total), int(free), int(chunks or 0), ident[:SHORTENED])
        for depth, (_, _, name, total, _, free, chunks, _, ident) in zip(depths, rows)
    ]
    assert contexts == printed


def test_the_context_is_the_finding(backend: Backend) -> None:
    answer = run_json("verdict", "--pid", str(backend.pid))
    (one,) = [each for each in answer["findings"] if each["finding"] == "memory-context"]
    assert "TopMemoryContext > CacheMemoryContext" in one["text"] and "CachedPlanSource" in one["text"]


@pytest.mark.matrix
@pytest.mark.parametrize("release", [postgresqls.INSTALLED, *(one for one in postgresqls.RELEASES if not one.startswith("13."))])
def test_a_new_user_finds_the_caches_of_a_backend(release: str, tmp_path: Path) -> None:
    """A session reads many tables and keeps the description of each table. The finding has the bytes that PostgreSQL counts."""
    tables = 400
    with postgres(tmp_path, archive(release)) as port:
        ask(port, f"do $$ begin for i in 1..{tables} loop execute format('create table t%s(id int primary key)', i); end loop; end $$")
        command = ["psql", "-h", "127.0.0.1", "-p", str(port), "-U", "postgres", "-qAt"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as session:
            assert session.stdin is not None and session.stdout is not None
            counts = "".join(f"select count(*) from t{number};\n" for number in range(1, tables + 1))
            sums = "sum(total_bytes) from pg_backend_memory_contexts where name = 'CacheMemoryContext'"
            session.stdin.write(f"{counts}select 'pid', pg_backend_pid(), {sums};\n")
            session.stdin.flush()
            pid, held = next(line.split("|")[1:] for line in session.stdout if line.startswith("pid"))
            text = follow(["--pid", pid], "runtime")
            session.stdin.close()
    assert int(held) > 2 << 20 and f" 1 {int(held) / (1 << 20):.1f} MiB CacheMemoryContext " in text, (held, text)


def test_where_an_address_is(backend: Backend) -> None:
    where = ["--pid", str(backend.pid)]
    lines = [
        json.loads(line) for line in run_cli("blocks", "--json", "--type", "CachedPlanSource", "--limit", "1", *where).stdout.splitlines()
    ]
    address = next(line["address"] for line in lines if "address" in line)
    assert "memory context: CachedPlanSource" in run_cli("whatis", address, *where).stdout


@pytest.mark.matrix
@pytest.mark.parametrize("debugger", [gdb, lldb])
def test_debuggers(backend: Backend, debugger: Any) -> None:
    (text,) = objects(debugger(["leaks runtime --json --limit 0"], "-p", str(backend.pid)))
    assert json.loads(text)["runtimes"][0]["types"] == run_json("runtime", "--pid", str(backend.pid))["runtimes"][0]["types"]
