"""Findings of `verdict` about many goroutines that wait at the same place."""

from __future__ import annotations

from findleaks.runtimes.base import Site, UserThread
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.go.deadlocks import LockHolder, describe_holders, waits_for_once
from findleaks.runtimes.go.goroutine_findings import describe_goroutines, large_groups, with_companions
from findleaks.runtimes.go.root_groups import describe_goroutines as describe_root
from findleaks.runtimes.go.verdict_findings import add_site
from findleaks.runtimes.user_threads import group_user_threads
from findleaks.target.base import Range
from findleaks.unwind.stacks import NamedFrame

STACK = 8192


def make_goroutines(first: int, count: int, function: str, reason: str) -> list[UserThread]:
    frames = tuple(NamedFrame(1, name, 0, "server", "server.go", 7) for name in ("runtime.gopark", function, "runtime.goexit"))
    creator = NamedFrame(2, "main.main", 0, "server", "main.go", 9)
    return [UserThread(first + at, "waiting", reason, 0, 0, Range(0, STACK), frames, creator) for at in range(count)]


def test_bodies_of_responses_that_are_not_closed() -> None:
    reads = make_goroutines(1, 1000, "net/http.(*persistConn).readLoop", "select")
    writes = make_goroutines(2001, 1000, "net/http.(*persistConn).writeLoop", "select")
    every = group_user_threads([*writes, *reads])
    (group,) = large_groups(every, 1 << 30, frozenset())
    threads = with_companions(group, every)
    assert len(threads) == 2000
    found = describe_goroutines(group, threads, None, frozenset())
    assert found.title == "1,000 goroutines wait in net/http.(*persistConn).readLoop (server.go:7): select."
    assert "until the body of a response is read to its end or closed" in found.cause
    assert "With 1,000 goroutines that belong to them, their stacks take 16 MiB." in found.cause
    assert found.remedies == ("close the body of each response: defer response.Body.Close()",)
    assert found.bytes == found.facts["stack_bytes"] == 2000 * STACK
    assert large_groups(group_user_threads(writes), 1 << 30, frozenset())  # without readers, they are reported


def test_few_goroutines_that_wait_for_a_close() -> None:
    """Each keeps a connection, however small their stacks are."""
    reads, rows = "net/http.(*persistConn).readLoop", "database/sql.(*Rows).awaitDone"
    for function, reason, count in ((reads, "select", 1), (rows, "select", 1), (reads, "IO wait", 0), ("main.poll", "select", 0)):
        assert len(large_groups(group_user_threads(make_goroutines(1, 100, function, reason)), 1 << 30, frozenset())) == count
    assert large_groups(group_user_threads(make_goroutines(1, 99, reads, "select")), 1 << 30, frozenset()) == []


def test_stacks_of_companions_count() -> None:
    reads = make_goroutines(1, 100, "net/http.(*persistConn).readLoop", "IO wait")
    writes = make_goroutines(2001, 100, "net/http.(*persistConn).writeLoop", "select")
    assert large_groups(group_user_threads(reads), 16 * 200 * STACK, frozenset()) == []
    (group,) = large_groups(group_user_threads([*reads, *writes]), 16 * 200 * STACK, frozenset())
    assert group.first.reason == "IO wait"


def test_readers_of_connections_of_http2_belong_to_their_servers() -> None:
    reads = make_goroutines(1, 1000, "golang.org/x/net/http2.(*serverConn).readFrames", "IO wait")
    serves = make_goroutines(2001, 1000, "golang.org/x/net/http2.(*serverConn).serve", "select")
    every = group_user_threads([*reads, *serves])
    (group,) = large_groups(every, 1 << 30, frozenset())
    assert group.first.reason == "select" and len(with_companions(group, every)) == 2000


def find_remedy(*functions: str, reason: str) -> str:
    """Return the remedy for 1,000 goroutines with these functions on their stacks, innermost first."""
    frames = tuple(NamedFrame(1, name, 0, "server", "server.go", 7) for name in ("runtime.gopark", *functions, "runtime.goexit"))
    every = group_user_threads([UserThread(at, "waiting", reason, 0, 0, Range(0, STACK), frames, None) for at in range(1, 1001)])
    (group,) = large_groups(every, 1 << 30, frozenset())
    return str(describe_goroutines(group, group.threads, None, frozenset()).remedies[0])


def test_advice_by_function_and_reason() -> None:
    stream, handler = "net/http.(*http2clientStream)", "net/http.(*http2serverConn).runHandler"
    assert "response.Body.Close()" in find_remedy(f"{stream}.writeRequest", f"{stream}.doRequest", reason="select")
    assert "response.Body.Close()" in find_remedy("golang.org/x/net/http2.(*clientStream).writeRequest", reason="select")
    for one in (handler, "net/http.(*conn).serve"):
        assert find_remedy("main.events", one, reason="select").startswith("return from the HTTP handler when")
    assert find_remedy("main.report", handler, reason="chan send").startswith("receive from the channel")
    assert "iter.Pull" in find_remedy("iter.Pull[go.shape.int].func1.1", "main.orders.func1", reason="coroutine")
    assert find_remedy("io.(*pipe).write", "main.export", reason="select") == "read each pipe to its end, or close its io.PipeReader"
    # The goroutine of a connection has (*conn).serve on its stack, and no handler.
    for prefix in ("net/http.(*http2", "net/http/internal/http2.(*", "golang.org/x/net/http2.(*"):
        serve, write, read = (f"{prefix}{method}" for method in ("serverConn).serve", "serverConn).writeDataFromHandler", "pipe).Read"))
        assert find_remedy(serve, "net/http.(*conn).serve", reason="select").startswith("set IdleTimeout of http.Server")
        assert find_remedy(write, "main.events", handler, reason="select") == "set WriteTimeout of http.Server"
        assert find_remedy("sync.(*Cond).Wait", read, "main.upload", handler, reason="sync.Cond.Wait").startswith("set ReadTimeout")
        assert "IdleConnTimeout" in find_remedy("internal/poll.(*FD).Read", f"{prefix}ClientConn).readLoop", reason="IO wait")
    assert "PipeReader" in find_remedy("sync.(*Mutex).Lock", "io.(*pipe).write", "main.export", reason="sync.Mutex.Lock")
    assert find_remedy("sync.(*Mutex).Lock", "main.report", handler, reason="semacquire").startswith("unlock")
    assert find_remedy("main.poll", reason="select").startswith("end goroutines that are not needed")


def test_advice_for_database_connections_and_grpc() -> None:
    pool = "database/sql.(*DB).conn", "database/sql.(*DB).QueryContext", "main.find"
    for functions in (("runtime.selectgo", *pool), ("database/sql.(*Rows).awaitDone",), ("database/sql.(*Tx).awaitDone",)):
        assert "rows.Close()" in find_remedy(*functions, reason="select")
    # A connection is being opened.
    assert find_remedy("internal/poll.(*FD).Read", *pool, reason="IO wait").startswith("set deadlines")
    assert "call Recv until" in find_remedy("google.golang.org/grpc.newClientStreamWithParams.func4", reason="select")
    assert "call Recv until" in find_remedy("main.(*server).Watch", "google.golang.org/grpc.(*Server).processStreamingRPC", reason="select")
    assert "grpc.ClientConn" in find_remedy("google.golang.org/grpc/internal/grpcsync.(*CallbackSerializer).run", reason="chan receive")


def test_site_of_a_function_of_the_library() -> None:
    """The finding also names the innermost functions of the program."""
    names = ["bufio.NewWriterSize", "net/http.newBufioWriterSize", "net/http.(*conn).serve", "main.work", "main.main", "runtime.main"]
    calls = tuple(NamedFrame(1, name, 0, "server", "server.go", 7) for name in names)
    finding = Finding("live-objects", 100, "title", "Most.", (), (), {})

    def cause(first: int, last: int) -> str:
        return add_site(finding, [Site(names[first:last], 3, 80, calls[first:last])]).cause

    said = "Most. 80 B of live objects were allocated by"
    assert cause(0, 6) == f"{said} bufio.NewWriterSize < … < main.work < main.main."
    assert cause(2, 6) == f"{said} net/http.(*conn).serve < main.work < main.main."
    assert cause(3, 6) == f"{said} main.work < main.main."
    assert cause(0, 3) == f"{said} bufio.NewWriterSize < net/http.newBufioWriterSize."  # no function of the program


def test_few_goroutines_that_are_blocked_for_good() -> None:
    """Findings need more goroutines, unless these are blocked forever."""
    every = group_user_threads(make_goroutines(1, 12, "main.query.func1", "chan send"))
    assert large_groups(every, 1 << 30, frozenset()) == []
    blocked = frozenset(range(1, 13))
    (group,) = large_groups(every, 1 << 30, blocked)
    found = describe_goroutines(group, group.threads, None, blocked)
    assert found.title == "12 goroutines are blocked for good in main.query.func1 (server.go:7): chan send."
    assert "They can never continue" in found.cause
    assert "give it a buffer" in found.remedies[0]
    part = describe_goroutines(group, group.threads, None, frozenset(range(1, 11)))
    assert part.title.startswith("12 goroutines wait in ") and "10 of them can never continue" in part.cause
    unknown = describe_goroutines(group, group.threads, None, None)
    assert unknown.facts["blocked_for_good"] is None and "never" not in unknown.cause


def test_names_of_roots() -> None:
    (one,) = make_goroutines(1, 1, "main.wait", "chan receive")
    assert describe_root(one) == "goroutines in main.wait (chan receive), created by main.main"


def test_holders_of_locks_are_not_read_on_other_machines() -> None:
    frames = (NamedFrame(1, "main.deposit", 0, "server", "server.go", 7),)
    (one,) = [UserThread(7, "waiting", "sync.Mutex.Lock", 0, 0, Range(0, STACK), frames, None)]
    holders = {7: LockHolder(0x1000, "main.Account.lock", None, (), "", False)}
    assert describe_holders([one], holders, {7: one}, "x86-64") == ("They wait for the lock main.Account.lock at 0x1000.", 0)
    text, deadlocked = describe_holders([one], holders, {7: one}, "AArch64")
    assert "does not read which goroutine holds a lock on AArch64, and finds no deadlocks there." in text and not deadlocked


def test_waits_for_a_once() -> None:
    """Go inlines the call of Lock in doSlow. In once.Do(mu.Lock), Lock is inlined in a wrapper, which is not among the frames."""

    def make_frames(lock: int) -> list[NamedFrame]:
        names = {
            "runtime.gopark": 1,
            "internal/sync.(*Mutex).lockSlow": 2,
            "sync.(*Mutex).Lock": lock,
            "sync.(*Once).doSlow": 4,
            "main.load": 5,
        }
        return [NamedFrame(address, name, 0, "server", inlined=name.endswith(".Lock")) for name, address in names.items()]

    assert waits_for_once(make_frames(4)) and not waits_for_once(make_frames(3))
    assert not waits_for_once(make_frames(4)[3:]) and not waits_for_once([])
