"""Checks of `doctor` on this machine, and on simulated machines with other files in /proc and /sys and other output of debuggers."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pytest
from schemas import check_object

from findleaks import cli
from findleaks.doctor.core_dumps import check_filter, check_limit, check_pattern
from findleaks.doctor.debuggers import describe_debugger
from findleaks.doctor.installation import check_demangler, check_engine, check_installation
from findleaks.doctor.live_processes import check_live_processes, check_ptrace
from findleaks.doctor.network import check_network
from findleaks.engine import load


def test_this_machine(capsys: pytest.CaptureFixture[str]) -> None:
    """Both debuggers are installed (the tests install them) and load findleaks. Text and JSON list the same checks."""
    assert cli.main(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    check_object(found)
    states = {one["name"]: one["state"] for one in found["checks"]}
    assert {states[name] for name in ("C engine", "capstone", "pyelftools", "GDB", "LLDB")} == {"ok"}
    assert cli.main(["doctor"]) == 0
    text = capsys.readouterr().out
    for one in found["checks"]:
        assert one["name"] in text
        assert one["remedy"] in text


@pytest.mark.parametrize(
    ("output", "state", "words"),
    [
        ("findleaks-probe 3.11.2 True\n", "ok", "Python 3.11.2"),
        ("noise\nfindleaks-probe 3.6.8 True capstone elftools\n", "limited", "does not find capstone and pyelftools"),
        ("findleaks-probe 3.11.2 False\n", "failed", "does not load"),
        ("Python scripting is not supported in this copy of GDB.\n", "failed", "built without Python"),
        ("", "failed", "does not start"),
    ],
)
def test_debuggers(output: str, state: str, words: str) -> None:
    check = describe_debugger("GDB", "/usr/bin/gdb", output)
    assert (check.state, bool(check.remedy)) == (state, state != "ok")
    assert words in check.detail


def test_who_may_trace(tmp_path: Path) -> None:
    rows = [(True, "1", "ok"), (False, "0", "limited"), (False, "1", "limited"), (False, "2", "limited"), (True, "3", "failed")]
    for privileged, scope, state in rows:
        assert check_ptrace(privileged, scope).state == state
    assert "sysctl kernel.yama.ptrace_scope=0" in check_ptrace(False, "1").remedy
    for path, text in {
        "proc/sys/kernel/yama/ptrace_scope": "1\n",
        "sys/fs/cgroup/memory.max": "536870912\n",
        "sys/fs/cgroup/memory.current": "104857600\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    status = {"Name": "x", "CapEff": "0000000000000000", "Seccomp": "2"}
    found = {check.name: check for check in check_live_processes(status, str(tmp_path))}
    assert [found[name].state for name in ("ptrace", "seccomp", "memory limit")] == ["limited", "limited", "ok"]
    assert "512 MiB, 412 MiB of it unused" in found["memory limit"].detail
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("max\n")
    assert "memory limit" not in {check.name for check in check_live_processes(status, str(tmp_path))}
    assert [check.state for check in check_live_processes({}, str(tmp_path / "none"))] == ["limited"]


def test_core_dumps() -> None:
    assert check_limit(0, "core").remedy == "ulimit -c unlimited"
    assert check_limit(1 << 20, "core").state == "limited"
    assert check_limit(resource.RLIM_INFINITY, "core").state == "ok"
    assert check_limit(0, "|/usr/lib/systemd/systemd-coredump %P").state == "ok"
    assert "apport" in check_pattern("|/usr/share/apport/apport -p%p").detail
    assert check_pattern("").state == "missing"
    assert "/var/cores" in check_pattern("/var/cores/core.%p").detail
    assert check_filter("00000033").state == "ok"
    assert "ELF headers" in check_filter("00000003").detail
    assert check_filter("?").state == "limited"


def test_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEBUGINFOD_URLS", "")
    assert [check.state for check in check_network()] == ["missing"]
    monkeypatch.setenv("DEBUGINFOD_URLS", "http://127.0.0.1:1 http://127.0.0.1:2")
    assert [check.detail for check in check_network()] == ["debug information is downloaded from http://127.0.0.1:1, http://127.0.0.1:2"]


def test_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("findleaks.doctor.installation.find_spec", lambda name: None)
    found = {check.name: check for check in check_installation()}
    assert {found["capstone"].state, found["pyelftools"].state} == {"failed"}
    assert found["pyarrow"].remedy == "pip install 'findleaks[parquet]'"


def test_without_a_cpp_library(monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_demangler().state == "ok"
    monkeypatch.setattr("findleaks.doctor.installation.demangle_type", lambda name: "")
    check = check_demangler()
    assert (check.state, check.remedy) == ("limited", "apt install libstdc++6")


def test_a_missing_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(**_: object) -> None:
        raise OSError("not built")

    monkeypatch.setattr(load, "library", absent)
    check = check_engine()
    assert check.state == "failed"
    assert "without its C engine" in check.detail
