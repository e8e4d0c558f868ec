"""`verdict` on synthetic memory: every byte is counted once, findings are reported only if there is a problem, and how
they are reported."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from typing import Any, Optional

import graphs
import pytest
from fake import FakeTarget, thread
from heaps import ListAllocator, Listed, session

from findleaks import commands
from findleaks.allocators.base import Blocks, Spare
from findleaks.audit.accounting import account_memory
from findleaks.audit.residency import read_residency
from findleaks.engine.contract import Engine
from findleaks.engine.terms import State
from findleaks.errors import Interrupted, UsageError
from findleaks.runtimes.base import Part, Runtime
from findleaks.session import Session
from findleaks.target.base import Module, Range
from findleaks.target.residency.presence import Presence
from findleaks.target.runs import Runs

PAGE = 4096
HEAP, LIB, MAP, STACK, SHM, VDSO = 0x100000, 0x8000000, 0x9000000, 0x70000000, 0xA000000, 0xB000000
MIB = 1 << 20


class KeepingAllocator(ListAllocator):
    """An allocator with free memory `spare` that has no blocks yet, and metadata at other addresses."""

    name, version, where = "keeper", "2.0", "libkeeper.so"

    def __init__(self, start: int, end: int, blocks: Sequence[Listed], spare: Sequence[Range] = (), own: Sequence[Range] = ()) -> None:
        super().__init__(start, end, blocks)
        self._spare, self._own = spare, own

    def spare(self, blocks: Blocks) -> list[Spare]:
        return [Spare(start, end, "dirty", "main") for start, end in self._spare]

    def metadata(self) -> Sequence[Range]:
        return self._own


def pages(resident: Sequence[tuple[int, int]], known: Sequence[tuple[int, int]], swapped: Sequence[tuple[int, int]] = ()) -> Presence:
    held = Runs.of(resident)
    return Presence("pagemap", Runs.of(known), held, Runs.of(swapped), held.total)


def make_session(
    blocks: Sequence[Listed],
    resident: Optional[Sequence[tuple[int, int]]] = None,
    size: int = 64 * PAGE,
    spare: Sequence[Range] = (),
    engine: Optional[Engine] = None,
    root: bytes = b"",
    **more: Any,
) -> Session:
    """Return a process with a heap, a library, shared memory, an anonymous mapping, the main stack and a vdso. All
    pages are resident, or those in `resident`."""
    memory = {
        HEAP: bytes(size),
        LIB: root + bytes(4 * PAGE - len(root)),
        MAP: bytes(3 * PAGE),
        SHM: bytes(2 * PAGE),
        VDSO: bytes(PAGE),
        STACK: b"\1" * (8 * PAGE),
    }
    names = {LIB: "/usr/lib/libthing.so", SHM: "/dev/shm/x", VDSO: "[vdso]", STACK: "[stack]"}
    target = FakeTarget(
        memory,
        names=names,
        threads=[thread(1, sp=STACK + 7 * PAGE)],
        modules=[Module("/usr/lib/libthing.so", LIB, LIB, LIB + 4 * PAGE)],
        live=True,
        **more,
    )
    whole = [(start, start + len(data)) for start, data in sorted(memory.items())]
    target.pages = pages(whole if resident is None else resident, whole)
    allocator = KeepingAllocator(HEAP, HEAP + size, blocks, spare, [Range(MAP, MAP + 100)])
    return session(target, [allocator], engine)


def run(made: Session, *words: str, width: int = 80) -> tuple[int, str]:
    out = io.StringIO()
    status = commands.execute(lambda: made, ["verdict", *words], out, width=width)
    return status, out.getvalue()


def run_json(made: Session, *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(made, *words, "--json")[1])
    assert sum(share["bytes"] for share in found["shares"]) == (found["mapped"] if found["resident"] is None else found["resident"])
    return found


def read_shares(found: dict[str, Any]) -> dict[str, int]:
    return {share["share"]: share["bytes"] for share in found["shares"]}


@pytest.mark.parametrize("engine", [graphs.native, graphs.pure])
def test_every_byte_is_counted_once(engine: Callable[[], Engine]) -> None:
    """Blocks that cross page borders, where some pages are resident. Each share is exact to the byte."""
    blocks = [
        Listed(HEAP + 16, 4000),
        Listed(HEAP + 4064, 5000, State.FREE),
        Listed(HEAP + 9072, 100, State.CACHED),
        Listed(HEAP + 9184, 8, State.METADATA),
        Listed(HEAP + 20480, 8000),
    ]
    resident = [
        (HEAP, HEAP + 2 * PAGE),
        (HEAP + 6 * PAGE, HEAP + 8 * PAGE),
        (LIB, LIB + PAGE),
        (MAP, MAP + PAGE),
        (STACK + PAGE, STACK + 3 * PAGE),
    ]
    spare = [Range(HEAP + 28480, HEAP + 40000)]
    made_ = make_session(blocks, resident, spare=spare, engine=engine())
    found = run_json(made_)
    assert found["resident"] == found["rss"] == 8 * PAGE
    in_use = 4000 + (20480 + 8000 - 6 * PAGE)
    free = 2 * PAGE - 4064
    kept = free + (8 * PAGE - 28480)
    assert read_shares(found) == {
        "in-use": in_use,
        "kept": kept,
        "metadata": 4 * PAGE - in_use - kept + 100,
        "files": PAGE,
        "unknown": PAGE - 100,
        "stacks": 2 * PAGE,
    }
    (store,) = found["allocators"]
    assert store["not_resident"] == 60 * PAGE
    assert store["arenas"][0]["spare"] == {"dirty": 8 * PAGE - 28480}
    assert store["metadata"] == read_shares(found)["metadata"]


def test_kinds_of_mappings() -> None:
    found = run_json(make_session([Listed(HEAP + 16, 1000)]))
    sums = read_shares(found)
    assert (sums["shared"], sums["kernel"], sums["stacks"], sums["files"]) == (2 * PAGE, PAGE, 8 * PAGE, 4 * PAGE)
    unknown = next(share for share in found["shares"] if share["share"] == "unknown")
    assert unknown["count"] == 1
    assert unknown["largest"][0]["address"] == hex(MAP)
    files = next(share for share in found["shares"] if share["share"] == "files")
    assert files["largest"] == [{"name": "libthing.so", "bytes": 4 * PAGE}]


def test_unknown_residency() -> None:
    session_ = make_session([Listed(HEAP + 16, 1000)])
    session_.target.pages = None  # type: ignore[attr-defined]
    found = run_json(session_)
    assert found["resident"] is None
    assert found["residency"] == "unknown"
    assert found["mapped"] == (64 + 4 + 3 + 2 + 1 + 8) * PAGE
    words = " ".join(run(session_)[1].split())
    assert "328 KiB mapped. It is unknown which pages of this process were resident" in words


def test_pages_that_may_be_the_zero_page_are_reported() -> None:
    """Old versions of Linux do not say which pages are the zero page. A note says which figure can be wrong, and by how much."""
    session_ = make_session([Listed(HEAP + 16, 1000)])
    whole = session_.target.pages  # type: ignore[attr-defined]
    session_.target.pages = whole._replace(rss=whole.resident.total - 2 * PAGE, unsure=(Range(HEAP, HEAP + PAGE),))  # type: ignore[attr-defined]
    found = run_json(session_)
    assert found["rss"] == found["resident"] - 2 * PAGE
    assert any("8.0 KiB" in warning and "zero page" in warning for warning in found["warnings"])


def test_swapped_pages_are_reported() -> None:
    session_ = make_session([Listed(HEAP + 16, 1000)], [(HEAP, HEAP + PAGE)])
    session_.target.pages = pages([(HEAP, HEAP + PAGE)], [(HEAP, HEAP + 4 * PAGE)], [(HEAP + PAGE, HEAP + 3 * PAGE)])  # type: ignore[attr-defined]
    assert run_json(session_)["swapped"] == 2 * PAGE
    assert run(session_)[1].startswith("4.0 KiB resident, 8.0 KiB swapped out\n")


def pack_references(*addresses: int) -> bytes:
    """Words in a library's data that refer to these addresses."""
    return b"".join(address.to_bytes(8, "little") for address in addresses)


def list_sorts(found: dict[str, Any]) -> list[str]:
    return [each["finding"] for each in found["findings"]]


def test_no_findings() -> None:
    blocks = [Listed(HEAP + 16, 1000), Listed(HEAP + 2000 * 16, 4000, State.FREE), Listed(HEAP + 4000 * 16, 2000, State.CACHED)]
    session_ = make_session(blocks, root=pack_references(HEAP + 16))
    found = run_json(session_)
    assert list_sorts(found) == ["nothing-lost"]
    status, words = run(session_)
    assert status == 0
    assert "1. Nothing leaked: 0 blocks definitely lost." in words
    assert "try:" not in words


def test_findings_are_ordered_by_size() -> None:
    size = 64 * MIB
    blocks = [Listed(HEAP + 16, 1000)]
    blocks += [Listed(HEAP + MIB + i * 256, 200) for i in range(8000)]  # 1.6 MB of leaked blocks
    blocks += [Listed(HEAP + 8 * MIB, 16 * MIB, State.CACHED), Listed(HEAP + 32 * MIB, 30 * MIB, State.FREE)]
    found = run_json(make_session(blocks, size=size, root=pack_references(HEAP + 16)))
    assert list_sorts(found) == ["kept", "thread-caches", "lost"]
    kept, cached, lost = found["findings"]
    assert (kept["bytes"], cached["bytes"], lost["bytes"]) == (30 * MIB, 16 * MIB, 8000 * 200)
    assert kept["evidence"]["causes"] == ["between"]
    assert kept["evidence"]["returnable"] is None
    assert lost["evidence"]["blocks"] == lost["evidence"]["leaks"] == 8000
    assert lost["next"][1] == f"whatis {HEAP + MIB:#x}"


def test_free_memory_by_cause() -> None:
    """Free blocks on pages with blocks in use, pages of free blocks only, and pages without a block: each cause with its bytes."""
    size = 64 * MIB
    blocks = [Listed(HEAP + i * PAGE + part, 2040, state) for i in range(4096) for part, state in ((16, State.IN_USE), (2064, State.FREE))]
    blocks.append(Listed(HEAP + 20 * MIB, 12 * MIB, State.FREE))
    found = run_json(make_session(blocks, size=size, spare=[Range(HEAP + 40 * MIB, HEAP + 56 * MIB)]))
    kept = find_finding(found, "kept")
    assert kept["evidence"]["causes"] == ["page heap", "between", "fragmentation"]
    assert kept["bytes"] == 4096 * 2040 + 28 * MIB
    assert kept["evidence"]["dirty"] == 16 * MIB
    assert abs(kept["evidence"]["shared"] - 4096 * 2040) <= 4096 * 16  # including the bytes between blocks
    assert "12 MiB are whole pages of free blocks" in kept["cause"]


def find_finding(found: dict[str, Any], sort: str) -> dict[str, Any]:
    (one,) = [each for each in found["findings"] if each["finding"] == sort]
    made_: dict[str, Any] = one
    return made_


def test_almost_empty_process() -> None:
    blocks = [Listed(HEAP + 16, 8 * MIB), Listed(HEAP + 9 * MIB, 64)]
    found = run_json(make_session(blocks, size=10 * MIB, root=pack_references(HEAP + 16)))
    assert list_sorts(found)[-1] == "next-to-nothing-lost"
    assert "lost" not in list_sorts(found)
    found = run_json(make_session([Listed(HEAP + 16, 100), Listed(HEAP + 1024, 64)], root=pack_references(HEAP + 16)))
    assert list_sorts(found) == ["lost"]


def test_largest_retainer() -> None:
    blocks = [Listed(HEAP + 16, 12 * MIB), Listed(HEAP + 13 * MIB, 1000)]
    found = run_json(make_session(blocks, size=16 * MIB, root=pack_references(HEAP + 16)))
    assert list_sorts(found)[0] == "held"
    assert found["findings"][0]["bytes"] == 12 * MIB


def test_memory_with_many_retainers_is_reported_by_size() -> None:  # three roots retain a third each
    big = [HEAP + 16 + i * 5 * MIB for i in range(3)]
    found = run_json(
        make_session([*(Listed(at, 4 * MIB) for at in big), Listed(HEAP + 15 * MIB, 1000)], size=16 * MIB, root=pack_references(*big))
    )
    assert list_sorts(found) == ["held-by-many", "next-to-nothing-lost"]
    (many, _) = found["findings"]
    roots = [{"name": f"libthing.so, data+{8 * at:#x}", "roots": 1, "bytes": 4 * MIB, "blocks": 1} for at in range(3)]
    assert (many["bytes"], many["evidence"]) == (12 * MIB, {"blocks": 3, "size": 4 * MIB, "blocks_of_size": 3, "largest_roots": roots})
    assert many["next"][:2] == ["roots 'libthing.so, data+0x0' --depth 4", "roots"]


def test_managed_runtimes_have_their_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory of a runtime is a separate share. The runtime's memory inside blocks counts as blocks."""

    class Ruby(Runtime):
        name = "Ruby"

        def parts(self) -> Sequence[Part]:
            return [Part("heap pages", [Range(MAP, MAP + PAGE)], 100, detail="1 page"), Part("inside", [Range(HEAP, HEAP + PAGE)], 1, True)]

    before = read_shares(run_json(make_session([Listed(HEAP + 16, 1000)])))
    monkeypatch.setattr("findleaks.session.Session.runtimes", [Ruby()])
    session_ = make_session([Listed(HEAP + 16, 1000)])
    after = read_shares(run_json(session_))
    assert after["runtime"] == PAGE - 100  # the first bytes of the mapping belong to the allocator
    assert after["unknown"] == before["unknown"] - after["runtime"]
    assert {**after, "unknown": 0, "runtime": 0} == {**before, "unknown": 0, "runtime": 0}
    assert "Ruby heap pages: 1 page" in run(session_)[1]


def test_unattributed_memory() -> None:
    session_ = make_session([Listed(HEAP + 16, 1000)], size=PAGE)
    big = 0x10000000
    target = FakeTarget({big: bytes(8 * MIB)}, threads=[thread(1, registers={"rbx": big})], live=True)
    whole = [(big, big + 8 * MIB)]
    target.pages = pages(whole, whole)
    alone = Session(target, session_.engine)
    found = run_failing(alone)
    assert list_sorts(found) == ["unread-memory", "no-blocks"]
    assert found["findings"][0]["next"][0] == f"whatis {big:#x}"
    assert found["findings"][0]["bytes"] == found["findings"][0]["resident_bytes"] == 8 * MIB
    assert run(alone)[1].startswith("findleaks does not read 100 % of the writable memory (8.0 MiB of 8.0 MiB)")


def find_unread(words: dict[str, Any]) -> list[tuple[Optional[str], int]]:
    return [(part["of"], part["bytes"]) for part in words["unread"]["parts"]]


def make_heap_session(runtimes: Sequence[Runtime], monkeypatch: pytest.MonkeyPatch, private: int = 8 * MIB, shared: int = 0) -> Session:
    """Return a session of a process with a heap of 3 MiB in use, and memory of no allocator."""
    big, other = 0x10000000, 0x20000000
    memory = {HEAP: bytes(4 * MIB), big: b"\1" * private, **({other: b"\1" * shared} if shared else {})}
    target = FakeTarget(memory, names={other: "/memfd:heap (deleted)"}, threads=[thread(1, registers={"rbx": big})], live=True)
    whole = [(start, start + len(data)) for start, data in sorted(memory.items())]
    target.pages = pages(whole, whole)
    monkeypatch.setattr("findleaks.session.Session.runtimes", list(runtimes))
    target.write(big, pack_references(HEAP + 16))
    return session(target, [KeepingAllocator(HEAP, HEAP + 4 * MIB, [Listed(HEAP + 16, 3 * MIB)])])


class HeapRuntime(Runtime):
    """A runtime whose heap is 4 MiB of the first mapping."""

    name, problems = "Lisp", []

    def parts(self) -> Sequence[Part]:
        return [Part("heap", [Range(0x10000000, 0x10000000 + 4 * MIB)], 100)]


class ListingRuntime(HeapRuntime):
    lists_objects = True


@pytest.mark.parametrize("known", [True, False])
def test_most_memory_is_not_read(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """This finding comes first, and findings about leaks say that they are about the rest. In a core of unknown
    residency, pages that are not zero count."""
    session_ = make_heap_session([], monkeypatch)
    if not known:
        session_.target.pages = None  # type: ignore[attr-defined]
    found = run_json(session_)
    assert list_sorts(found)[0] == "unread-memory"
    assert list_sorts(found)[-1] == "nothing-lost"
    assert found["findings"][-1]["text"].startswith("Nothing leaked in the other ")
    assert find_unread(found) == [(None, 8 * MIB)]
    assert found["findings"][0]["resident_bytes"] == (8 * MIB if known else None)
    status, words = run(session_)
    assert status == 0
    assert words.startswith(found["findings"][0]["text"][:70])
    out = io.StringIO()
    commands.execute(lambda: session_, ["find"], out, width=200)
    assert out.getvalue().startswith(found["findings"][0]["text"][:190].rpartition(" ")[0])
    assert "nothing is leaked in the other" in out.getvalue()


def test_little_memory_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run_json(make_heap_session([], monkeypatch, private=2 * MIB))
    assert "unread-memory" not in list_sorts(found)
    assert found["unread"]["percent"] == 33
    assert found["findings"][-1]["text"] == "Nothing leaked in the other 4.0 MiB, which findleaks reads: 0 blocks definitely lost."


def test_heaps_that_are_not_read_have_names(monkeypatch: pytest.MonkeyPatch) -> None:
    found = run_json(make_heap_session([HeapRuntime()], monkeypatch, shared=2 * MIB))
    assert find_unread(found) == [("Lisp memory", 4 * MIB), (None, 4 * MIB), ("shared memory", 2 * MIB)]
    found = run_json(make_heap_session([ListingRuntime()], monkeypatch))
    assert find_unread(found) == [(None, 4 * MIB)]  # a runtime whose objects are listed counts as read


def test_a_runtime_without_malloc(monkeypatch: pytest.MonkeyPatch) -> None:
    """The heap of the runtime is known, so the exit status is 0."""
    session_ = make_heap_session([HeapRuntime()], monkeypatch)
    alone = Session(session_.target, session_.engine)
    status, words = run(alone, "--json")
    assert status == 0
    found = json.loads(words)
    assert list_sorts(found) == ["unread-memory", "no-blocks"]
    assert found["findings"][1]["text"].endswith("the only known heap is that of Lisp.")
    out = io.StringIO()
    assert commands.execute(lambda: alone, ["find"], out, width=200) == 0
    assert commands.execute(lambda: alone, ["find", "--fail-over", "0"], out, width=200) == 2


def run_failing(made_: Session) -> dict[str, Any]:
    status, words = run(made_, "--json")
    assert status == 2
    found: dict[str, Any] = json.loads(words)
    return found


@pytest.mark.parametrize("width", [60, 80, 120])
def test_lines_fit(width: int) -> None:
    blocks = [Listed(HEAP + 16, 1000), *(Listed(HEAP + MIB + i * 256, 200) for i in range(8000))]
    blocks.append(Listed(HEAP + 32 * MIB, 30 * MIB, State.FREE))
    session_ = make_session(blocks, size=64 * MIB, root=pack_references(HEAP + 16))
    lines = run(session_, width=width)[1].splitlines()
    assert max(map(len, lines)) <= width
    found = run_json(session_)
    text = " ".join(" ".join(lines).split())
    for each in found["findings"]:
        for sentence in (each["text"], *each["try"]):
            assert sentence in text
        for words in each["next"]:
            assert f"leaks {words}" in text


def test_ctrl_c() -> None:
    blocks = [Listed(HEAP + 16, 1000)]
    for polls in (0, 1, 2, 4):
        with pytest.raises(Interrupted):
            run(make_session(blocks, stop_after=polls))


def test_invalid_arguments() -> None:
    for words in (["--bogus"], ["extra"], ["--residency"]):
        with pytest.raises(UsageError):
            run(make_session([]), *words)


def test_runs_of_residency_are_clipped_to_the_heap() -> None:
    """A run of resident pages that begins before a heap and ends after it is divided between the heap and its neighbours."""
    target = FakeTarget({HEAP: bytes(4 * PAGE)}, threads=[thread(1)], live=True)
    target.pages = pages([(HEAP, HEAP + 4 * PAGE)], [(HEAP, HEAP + 4 * PAGE)])
    inner = KeepingAllocator(HEAP + PAGE, HEAP + 2 * PAGE, [Listed(HEAP + PAGE, PAGE)])
    session_ = session(target, [inner])
    found = account_memory(session_, read_residency(session_))
    assert {share.sort: share.bytes for share in found.shares if share.bytes} == {"in-use": PAGE, "unknown": 3 * PAGE}
