"""Findings of `verdict` about goroutines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Optional

from findleaks.formatting import format_amount, format_count, number, shorten, size, some
from findleaks.runtimes.base import UserThread
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.go.deadlocks import ONCE, ONCE_REMEDY, REMEDY, waits_for_once
from findleaks.runtimes.go.object_totals import Retained
from findleaks.runtimes.go.packages import find_own_frame
from findleaks.runtimes.user_threads import UserThreadGroup

_MANY, _MOST_GROUPS = 1000, 3  # goroutines of a group, and groups, that are reported
# Goroutines that are reported if they wait until something is closed, or if their stacks take
# 1 / _PART of the heap.
_SOME, _PART = 100, 16
_SINGULAR = {"They wait": "It waits", "They were": "It was", "Their stacks take": "Its stack takes", "Only they refer": "Only it refers"}
_FEW = 10  # goroutines that are reported if they are blocked for good
_MOST_TYPES = 3  # types that a sentence names


class _Advice(NamedTuple):
    """`cause`: a sentence, or "". `remedy`: a clause. `is_idle`: see Finding. `is_unclosed`:
    whether each goroutine waits until the program closes something."""

    cause: str
    remedy: str
    is_idle: bool = False
    is_unclosed: bool = False


_REASONS = {
    "chan send": _Advice("", "receive from the channel, or give it a buffer, so that the sender can end"),
    "chan send (nil chan)": _Advice("The channel is nil, so they never continue.", "assign the channel before it is used"),
    "chan receive (nil chan)": _Advice("The channel is nil, so they never continue.", "assign the channel before it is used"),
    "select (no cases)": _Advice("", "end the program or the goroutine instead of select {}"),
    "sync.WaitGroup.Wait": _Advice("", "call Done once for each Add"),
    "sync.Cond.Wait": _Advice("", "call Signal or Broadcast after each change of the condition"),
    "semacquire": _Advice("", "unlock on every path, for example with defer, and call Done once for each Add of a WaitGroup"),
    ONCE: _Advice("", "return from the function of the sync.Once, for example after a timeout"),
    "IO wait": _Advice("", "set deadlines, and close connections that are not needed"),
    "coroutine": _Advice("", "call the function stop that iter.Pull returned, for example with defer"),
    **dict.fromkeys(
        ("sync.Mutex.Lock", "sync.RWMutex.Lock", "sync.RWMutex.RLock"),
        _Advice("", "unlock on every path, for example with defer, and find the goroutine that holds the lock with `stacks`"),
    ),
}
# What they wait for; "semacquire" is the reason of locks up to 1.19, of WaitGroups up to 1.23.
_OBJECTS = {
    "semacquire": "locks or WaitGroups",
    "sync.WaitGroup.Wait": "WaitGroups",
    "sync.Cond.Wait": "conditions",
    ONCE: "values of sync.Once",
    **dict.fromkeys(("sync.Mutex.Lock", "sync.RWMutex.Lock", "sync.RWMutex.RLock"), "locks"),
}
# The functions that tell apart what "semacquire" means, and the reasons of later versions of Go.
_SEMACQUIRE = {
    "sync.(*WaitGroup).Wait": "sync.WaitGroup.Wait",
    "sync.(*RWMutex).RLock": "sync.RWMutex.RLock",
    "sync.(*RWMutex).Lock": "sync.RWMutex.Lock",
    "sync.(*Mutex).Lock": "sync.Mutex.Lock",
    "sync.(*Mutex).lockSlow": "sync.Mutex.Lock",
}
_ADVICE = _Advice("", "end goroutines that are not needed: close their channel, or cancel their context")
TIMES = "chan time.Time"
TIMED, SEMAPHORE, FULL = "select with a channel of a timer", "semaphore", "full buffer"
"""Kinds of waits that describe_goroutines explains."""
# Advice by the type of the channel from which the goroutines receive, or by the kind of the wait.
_CHANNELS = {
    TIMED: _Advice(
        "One of the channels of the select is that of a ticker or timer.",
        "end each goroutine that is not needed: close another channel of its select, or cancel its context, and stop its ticker or timer",
    ),
    SEMAPHORE: _Advice(
        "The buffer of the channel is full. Its elements have no bytes, so the channel may be a semaphore.",
        "receive from the channel on every path after the send, for example with defer",
    ),
    FULL: _Advice("The buffer of the channel is full.", "receive from the channel: a larger buffer only delays this"),
    TIMES: _Advice(
        "The channel is that of a ticker or timer. Nothing closes it, not even Stop.",
        "end the loop of each goroutine with a second channel or a context, and stop its ticker or timer",
    ),
}
_CONNECTION = _Advice(
    "Each reads a connection of an http.Transport. The connection waits for a response, or is idle.",
    "use one http.Client for all requests, and set IdleConnTimeout of its Transport",
)
_BODY = "close the body of each response: defer response.Body.Close()"
_STREAM = _Advice(
    "Each waits until the body of a response of HTTP/2 is read to its end or closed, or for a response.",
    f"{_BODY}; set Timeout of http.Client",
    is_unclosed=True,
)
# net/http: transport.go (readLoop waits in a select only while a response is being read),
# server.go, h2_bundle.go (writeRequest, which doRequest calls, waits until the stream ends)
_FUNCTIONS = {
    ("net/http.(*persistConn).readLoop", "select"): _Advice(
        "Each waits until the body of a response is read to its end or closed.",
        _BODY,
        is_unclosed=True,
    ),
    ("net/http.(*http2clientStream).doRequest", "select"): _STREAM,
    ("net/http/internal/http2.(*clientStream).doRequest", "select"): _STREAM,
    ("golang.org/x/net/http2.(*clientStream).writeRequest", "select"): _STREAM,
    ("net/http.(*persistConn).readLoop", "IO wait"): _CONNECTION,
    ("net/http.(*conn).serve", "IO wait"): _Advice(
        "Each serves a connection whose client sends no request.",
        "set IdleTimeout and ReadTimeout of http.Server, and close connections of clients",
        is_idle=True,
    ),
}


def _http2(method: str) -> tuple[str, ...]:
    """Return the names of a method of HTTP/2: in net/http up to Go 1.26, in later versions, and in
    the module golang.org/x/net. `method`: such as "serverConn).serve"."""
    return f"net/http.(*http2{method}", f"net/http/internal/http2.(*{method}", f"golang.org/x/net/http2.(*{method}"


# Advice by a function on the stack, whatever the reason of the wait: these functions wait
# themselves. Sources: io/pipe.go (write waits in a select, or for the lock of another writer),
# net/http/h2_bundle.go
_WAITING = {
    "io.(*pipe).write": _Advice("", "read each pipe to its end, or close its io.PipeReader"),
    "io.(*pipe).read": _Advice("", "close the io.PipeWriter of each pipe"),
    **dict.fromkeys(_http2("ClientConn).readLoop"), _CONNECTION),
    **dict.fromkeys(
        _http2("serverConn).serve"),
        _Advice("Each serves a connection of HTTP/2.", "set IdleTimeout of http.Server, and close connections of clients", is_idle=True),
    ),
    **dict.fromkeys(
        _http2("serverConn).writeDataFromHandler"),
        _Advice("Each waits until a client reads its response of HTTP/2.", "set WriteTimeout of http.Server"),
    ),
    **dict.fromkeys(
        _http2("pipe).Read"),
        _Advice(
            "Each waits for the body of a request or response of HTTP/2.", "set ReadTimeout of http.Server, and Timeout of http.Client"
        ),
    ),
}
_ROWS = "close each sql.Rows, and end each sql.Tx: defer rows.Close(), defer tx.Rollback()"
_CLIENT = "close each grpc.ClientConn that is no longer needed, and use one for all calls to a server"
_STREAMS = "cancel the context of each stream, or call Recv until it returns an error"
# Advice by the function that waits, which is the innermost one outside the package runtime:
# database/sql/sql.go (awaitDone ends when the Rows or Tx is closed; conn waits in a select only for
# a connection of the pool), context/context.go (propagateCancel), os/signal/signal.go; package
# google.golang.org/grpc.
_WAITERS = {
    "database/sql.(*DB).conn": _Advice("All connections that the sql.DB may open are in use.", _ROWS),
    "database/sql.(*Rows).awaitDone": _Advice("Each waits until an sql.Rows is closed.", _ROWS, is_unclosed=True),
    "database/sql.(*Tx).awaitDone": _Advice("Each waits until an sql.Tx ends.", _ROWS, is_unclosed=True),
    "database/sql.(*DB).connectionOpener": _Advice(
        "Each belongs to an sql.DB that is open.", "open one sql.DB for all requests, and close those that are no longer needed"
    ),
    **dict.fromkeys(
        ("context.(*cancelCtx).propagateCancel.func2", "context.propagateCancel.func1", "os/signal.NotifyContext.func1"),
        _Advice(
            "Each waits until a context ends.", "call the function that returned with the context, for example with defer", is_unclosed=True
        ),
    ),
    "google.golang.org/grpc.newClientStreamWithParams.func4": _Advice("Each waits until a stream of gRPC ends.", _STREAMS),
    "google.golang.org/grpc/internal/grpcsync.(*CallbackSerializer).run": _Advice("They belong to clients of gRPC that are open.", _CLIENT),
}
# Advice by a function on the stack that runs a handler, if the reason has none
_HANDLER = _Advice("", "return from the HTTP handler when the context of its request is done, or after a timeout")
_CALLERS = dict.fromkeys(("net/http.(*conn).serve", *_http2("serverConn).runHandler")), _HANDLER)
_CALLERS["google.golang.org/grpc.(*Server).processStreamingRPC"] = _Advice(
    "Each runs the handler of a stream of gRPC.",
    f"in the client, {_STREAMS}; return from the handler when the context of its stream is done",
)
# Companions: goroutines that exist for another goroutine. Each key is the function of a companion,
# its value a function on the stack of the other goroutine. The companion writes the requests of a
# connection, reads from the connection while a handler runs, or reads the frames of HTTP/2.
_COMPANIONS = {
    "net/http.(*persistConn).writeLoop": "net/http.(*persistConn).readLoop",
    "net/http.(*connReader).backgroundRead": "net/http.(*conn).serve",
    **dict(zip(_http2("serverConn).readFrames"), _http2("serverConn).serve"))),
}


def _function(group: UserThreadGroup) -> str:
    frame = find_own_frame(group.frames)
    return frame.short_name() if frame is not None else ""


def _find_reason(group: UserThreadGroup) -> str:
    """Return the reason of the wait as the newest versions of Go name it, or ONCE."""
    if waits_for_once(group.frames):
        return ONCE
    if group.first.reason != "semacquire":
        return group.first.reason
    return next((_SEMACQUIRE[one.function] for one in group.frames if one.function in _SEMACQUIRE), group.first.reason)


def _find_waiter(group: UserThreadGroup) -> Optional[_Advice]:
    """Return the advice for the function that waits; None if it has none."""
    return next((_WAITERS.get(one.function) for one in group.frames if not one.function.startswith("runtime.")), None)


def _find_known(group: UserThreadGroup) -> Optional[_Advice]:
    """Return the advice for the functions of a group, whatever they wait for; None if there is
    none."""
    return _FUNCTIONS.get((_function(group), group.first.reason)) or _find_advice(group, _WAITING) or _find_waiter(group)


def _is_unclosed(group: UserThreadGroup) -> bool:
    advice = _find_known(group)
    return advice is not None and advice.is_unclosed


def _find_advice(group: UserThreadGroup, advice: Mapping[str, _Advice]) -> Optional[_Advice]:
    """Return the advice for the innermost frame that has any; None if no frame has."""
    return next((advice[one.function] for one in group.frames if one.function in advice), None)


def _leader(group: UserThreadGroup, groups: Sequence[UserThreadGroup]) -> Optional[UserThreadGroup]:
    """Return the first of `groups` whose companions are the goroutines of a group; None if there is
    none."""
    function = next((_COMPANIONS[one.function] for one in group.frames if one.function in _COMPANIONS), None)
    return next((one for one in groups if any(frame.function == function for frame in one.frames)), None) if function else None


def large_groups(
    groups: Sequence[UserThreadGroup], heap: int, blocked: frozenset[int], deadlocked: frozenset[int] = frozenset()
) -> list[UserThreadGroup]:
    """Return the groups that are reported, at most three. The goroutines of a group wait at the
    same place. A group is reported if it has

    - many goroutines,
    - fewer goroutines that wait until something is closed, or whose stacks take much memory,
    - some goroutines that are `blocked` for good,
    - or any that are `deadlocked`. Such groups are first.

    `groups`: those with the most goroutines first. `heap`: bytes of Go's heap in use."""

    def is_large(group: UserThreadGroup) -> bool:
        count = len(group.threads)
        if count >= _MANY:
            return True
        if count >= _SOME and (_is_unclosed(group) or _stack_bytes(with_companions(group, groups)) * _PART >= heap):
            return True
        if any(one.number in deadlocked for one in group.threads):
            return True
        return count >= _FEW and sum(one.number in blocked for one in group.threads) >= _FEW

    large = [group for group in groups if group.first.state == "waiting" and group.frames and is_large(group)]
    large.sort(key=lambda group: all(one.number not in deadlocked for one in group.threads))
    return [group for group in large if _leader(group, large) is None][:_MOST_GROUPS]


def with_companions(group: UserThreadGroup, groups: Sequence[UserThreadGroup]) -> list[UserThread]:
    """Return the goroutines of a group, and their companions in `groups`. Companions that may
    belong to several groups count for the first of these. `groups`: those with the most goroutines
    first."""
    others = [one for one in groups if _leader(one, groups) is group]
    return [thread for one in (group, *others) for thread in one.threads]


def describe_goroutines(
    group: UserThreadGroup,
    threads: Sequence[UserThread],
    retained: Optional[Retained],
    blocked: Optional[frozenset[int]],
    channel: str = "",
    locks: tuple[str, int] = ("", 0),
) -> Finding:
    """Return the finding about a group. `threads`: the result of `with_companions`. `retained`:
    what is reachable only from these. `blocked`: goroutines that are blocked for good; None:
    unknown. `channel`: the type of the channel from which the goroutines receive, TIMED, SEMAPHORE,
    FULL, or "".
    `locks`: the result of deadlocks.describe_holders."""
    count, reason, awaited = len(group.threads), group.first.reason, _find_reason(group)
    forever = sum(one.number in blocked for one in group.threads) if blocked is not None else None
    known = _find_known(group) or _CHANNELS.get(channel) or _REASONS.get(awaited)
    advice = known or _find_advice(group, _CALLERS) or _ADVICE
    sentences = [advice.cause] if advice.cause else []
    if forever and not locks[1] and (not advice.cause or channel in _CHANNELS):
        sentences.append(_explain_blocked(forever, count, reason, awaited))
    sentences += [locks[0]] if locks[0] else []
    sentences += _describe_memory(group, threads, retained)
    cause = " ".join(sentences)
    for plural, singular in _SINGULAR.items() if len(threads) == 1 else ():
        cause = cause.replace(plural, singular)
    stacks, held = _stack_bytes(threads), retained.totals if retained is not None else None
    facts = {
        **_place_facts(group),
        "blocked_for_good": forever,
        "deadlocked": locks[1],
        "stack_bytes": stacks,
        "retained_objects": held.blocks if held is not None else None,
        "retained_bytes": held.bytes if held is not None else None,
    }
    present = stacks + retained.resident if retained is not None and retained.resident is not None else None
    remedies = ((ONCE_REMEDY if awaited == ONCE else REMEDY) if locks[1] else advice.remedy,)
    title, commands = _title(group, awaited, forever, locks[1]), ("stacks", "runtime --only go")
    total = stacks + (held.bytes if held is not None else 0)
    return Finding("goroutines", total, title, cause, remedies, commands, facts, present, is_idle=advice.is_idle)


def _title(group: UserThreadGroup, awaited: str, forever: Optional[int], deadlocked: int) -> str:
    count, frame = len(group.threads), find_own_frame(group.frames)
    place = f" ({shorten(frame.place())})" if frame is not None and frame.line else ""
    state = "are blocked for good" if forever == count else "wait"
    state = ("are deadlocked" if count > 1 else "is deadlocked") if deadlocked == count else state
    shown = awaited if awaited == ONCE else group.first.reason or "unknown"
    return f"{format_count(count, 'goroutine')} {state} in {shorten(_function(group))}{place}: {shorten(shown)}."


def _explain_blocked(forever: int, count: int, reason: str, awaited: str) -> str:
    """Return the sentence that says why `forever` of `count` goroutines can never continue."""
    who = "They" if forever == count else f"{number(forever)} of them"
    what = _OBJECTS.get(awaited, "channels")
    why = f"nothing else can reach the {what} for which they wait"
    if reason == "select":
        why = "the channels for which they wait are nil, or nothing else can reach them"
    return f"{who} can never continue: {why}."


def _describe_memory(group: UserThreadGroup, threads: Sequence[UserThread], retained: Optional[Retained]) -> list[str]:
    """Return sentences about the creator of goroutines, their memory, and how long they wait."""
    sentences, creator, others = [], group.first.creator, len(threads) - len(group.threads)
    if creator is not None:
        sentences.append(f"They were created by {shorten(creator.short_name())} at {shorten(creator.place())}.")
    whose = f"With {number(others)} goroutines that belong to them, their" if others else "Their"
    sentences.append(f"{whose} stacks take {size(_stack_bytes(threads))}.")
    if retained is not None and retained.totals.bytes:
        held = retained.totals
        types = [f"{number(one.blocks)} {shorten(name)} ({size(one.bytes)})" for name, one in retained.types[:_MOST_TYPES]]
        amount = f"{format_amount(held.bytes, retained.resident)} in {format_count(held.blocks, 'object')}"
        sentences.append(f"Only they refer to {amount}: {some(types, _MOST_TYPES)}.")
    minutes = (group.waiting or 0) // 60_000_000_000
    if minutes:
        sentences.append(f"The longest wait is {number(minutes)} min.")
    return sentences


def _stack_bytes(threads: Sequence[UserThread]) -> int:
    return sum(one.stack.end - one.stack.start for one in threads)


def _place_facts(group: UserThreadGroup) -> dict[str, object]:
    """Return the facts of a finding about where the goroutines wait, and who created them."""
    frame, creator = find_own_frame(group.frames), group.first.creator
    return {
        "goroutines": len(group.threads),
        "function": frame.function if frame is not None else None,
        "file": (frame.file or None) if frame is not None else None,
        "line": (frame.line or None) if frame is not None else None,
        "reason": group.first.reason or None,
        "creator": creator.function if creator is not None else None,
        "creator_file": creator.file if creator is not None else None,
        "creator_line": creator.line if creator is not None else None,
    }
