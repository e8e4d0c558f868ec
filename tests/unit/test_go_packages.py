"""Functions of Go's standard library and functions of programs are distinguished by their names."""

from __future__ import annotations

import pytest

from findleaks.runtimes.go.packages import find_own_frame, is_library
from findleaks.unwind.stacks import NamedFrame


@pytest.mark.parametrize(
    "function",
    [
        "sync/atomic.(*Value).Load",
        "net/http.(*conn).serve",
        "sync.(*Pool).Get",
        "internal/sync.(*HashTrieMap[go.shape.interface {},go.shape.interface {}]).Load",
        "slices.SortFunc[go.shape.[]github.com/a/b.T]",
        "vendor/golang.org/x/net/http2/hpack.NewEncoder",
        "runtime.gopark",
        "go/ast.Walk",
    ],
)
def test_functions_of_the_library(function: str) -> None:
    assert is_library(function)


@pytest.mark.parametrize(
    "function",
    [
        "main.main",
        "go.uber.org/zap.New",
        "log.example.com/sync.F",
        "main.F[net/http.T]",
        "logging.Write",
        "golang.org/x/sync.Go",
        "crosscall2",
        "plugin/unnamed-0123456789abcdef.Start",
    ],
)
def test_functions_of_programs(function: str) -> None:
    assert not is_library(function)


@pytest.mark.parametrize(
    ("functions", "own"),
    [
        (("runtime.gopark", "main.wait", "main.main", "runtime.main"), "main.wait"),
        (("runtime.gopark", "net.(*conn).Read", "net/http.(*persistConn).readLoop", "runtime.goexit"), "net/http.(*persistConn).readLoop"),
        (("runtime.gopark", "runtime.bgsweep", "runtime.goexit"), "runtime.bgsweep"),
        (("runtime.goexit",), "runtime.goexit"),
    ],
)
def test_frame_that_describes_a_goroutine(functions: tuple[str, ...], own: str) -> None:
    frame = find_own_frame([NamedFrame(1, one, 0, "server", "server.go", 7) for one in functions])
    assert frame is not None and frame.function == own
    assert find_own_frame([]) is None
