"""Pointers that Linux keeps for a process and prints in /proc: decoded, saved as text, and hostile text."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from findleaks.audit.registered_buffers import describe_registered_buffers
from findleaks.target.arch import I386, X86_64
from findleaks.target.base import Range
from findleaks.target.kernel_references import (
    OTHERS,
    KernelReference,
    KernelState,
    RawState,
    count_names,
    decode_raw_state,
    decode_state,
    encode_state,
    merge_numbered_files,
)
from findleaks.target.unread_data import UnreadData

EPOLL = b"""pos:\t0
flags:\t02
mnt_id:\t17
ino:\t1039
tfd:       33 events:       19 data:     56478bf91e00  pos:0 ino:390bb sdev:f
tfd:        5 events:     4019 data: ffff00007f001234  pos:0 ino:390bc sdev:f
tfd:        6 events:       19 data:                0  pos:0 ino:390bd sdev:f
"""
RING = b"""pos:\t0
SqMask:\t0x7
SQEs:\t1
    4: opcode:READ, fd:4, flags:0, off:0, addr:0x55b400f360a0, rw_flags:0x0, buf_index:0 user_data:94197001445360
CQEs:\t1
    0: user_data:19088743, res:0, flag:0
SqThread:\t-1
UserFiles:\t1
    0: pipe:[233668]
UserBufs:\t2
    0: 0x55b400f342a0/4096
    1: 0x55b400f352b0/4096
PollList:
  op=6, task_works=0
CqOverflowList:
  user_data=35865960, res=0, flags=0
"""
TIMERS = b"""ID: 19
signal: 10/00005571f75b1210
notify: signal/pid.29085
ClockID: 1
ID: 2
signal: 34/0000000000000000
notify: thread/tid.29086
ClockID: 0
"""


def raw(kind: str = "", text: bytes = b"", timers: bytes = b"", queued: bytes = b"") -> RawState:
    return RawState([(kind, 7, text)], timers, [(12, queued)] if queued else [], {})


def names(state: KernelState) -> list[tuple[int, str]]:
    return [(one.value, one.name) for one in state.references]


def siginfo(code: int, value: int) -> bytes:
    return struct.pack("<iiiiiiQ", 34, 0, code, 0, 4711, 0, value).ljust(128, b"\0")


def test_epoll() -> None:
    assert names(decode_raw_state(raw("anon_inode:[eventpoll]", EPOLL), X86_64)) == [
        (0x56478BF91E00, "epoll data of descriptor 7 (target 33)"),
        (0xFFFF00007F001234, "epoll data of descriptor 7 (target 5)"),
    ]
    narrow = decode_raw_state(raw("anon_inode:[eventpoll]", EPOLL), I386)
    assert [one.value for one in narrow.references] == [0x8BF91E00, 0x5647, 0x7F001234, 0xFFFF0000]


def test_io_uring() -> None:
    found = names(decode_raw_state(raw("anon_inode:[io_uring]", RING), X86_64))
    assert sorted(value for value, _ in found) == sorted(
        [0x55B400F342A0, 0x55B400F352B0, 0x55B400F360A0, 94197001445360, 19088743, 35865960]
    )
    assert (0x55B400F342A0, "io_uring descriptor 7 (registered buffer)") in found


def test_registered_buffers_are_named() -> None:
    state = decode_raw_state(raw("anon_inode:[io_uring]", RING), X86_64)
    target: Any = SimpleNamespace(kernel_state=lambda: state)
    whole = describe_registered_buffers(target, [Range(0x55B400F34000, 0x55B400F37000)])
    assert whole == "2 buffers registered with io_uring descriptor 7"
    assert describe_registered_buffers(target, [Range(0x55B400F35000, 0x55B400F37000)]).startswith("1 buffer registered")
    assert not describe_registered_buffers(target, [Range(0x55B400F36000, 0x55B400F37000)])  # a submitted entry is not a buffer
    assert not describe_registered_buffers(SimpleNamespace(kernel_state=lambda: None), [Range(0, 1 << 47)])  # type: ignore[arg-type]


def test_timers() -> None:
    assert names(decode_raw_state(raw(timers=TIMERS), X86_64)) == [(0x5571F75B1210, "timer 19")]


def test_queued_signals() -> None:
    """A kill() has no value. The process id of the sender is at the same offset and must not be read as one."""
    assert names(decode_raw_state(raw(queued=siginfo(-1, 0x5571F75B1210)), X86_64)) == [(0x5571F75B1210, "signal 34 queued for thread 12")]
    assert names(decode_raw_state(raw(queued=siginfo(0, 0x5571F75B1210)), X86_64)) == []


def test_unread_data() -> None:
    """Pointers at any offset; for 32-bit targets, only at multiples of 4. Text and small numbers are left out."""
    data = b"x" + struct.pack("<QQ", 0x5571F75B1210, 7) + b"some text of a message" + struct.pack("<Q", 0x7F0012345678)
    state = raw()._replace(unread=[UnreadData("pipe, descriptor 5", data)])
    found = names(decode_raw_state(state, X86_64))
    assert {(0x5571F75B1210, "pipe, descriptor 5 (byte 1)"), (0x7F0012345678, "pipe, descriptor 5 (byte 39)")} <= set(found)
    assert all(1 << 16 <= value < 1 << 48 for value, _ in found) and len(found) < 10
    narrow = raw()._replace(unread=[UnreadData("message queue 1", struct.pack("<II", 0x0804A008, 3))])
    assert names(decode_raw_state(narrow, I386)) == [(0x0804A008, "message queue 1 (byte 0)")]


def test_eventfd() -> None:
    assert names(decode_raw_state(raw("anon_inode:[eventfd]", b"flags:\t02\neventfd-count:     5571f75b1210\n"), X86_64)) == [
        (0x5571F75B1210, "eventfd, descriptor 7 (counter)")
    ]
    assert names(decode_raw_state(raw("anon_inode:[eventfd]", b"eventfd-count:               20\n"), X86_64)) == []


def test_the_text_form() -> None:
    state = decode_raw_state(raw("anon_inode:[eventpoll]", EPOLL, TIMERS, siginfo(-2, 5)), X86_64)._replace(
        hidden={"io_uring descriptor": 2}, opened={"/tmp/a b\n\udcff": 300, "socket": 2}
    )
    assert decode_state(encode_state(state)) == state


@given(st.binary(max_size=300) | st.text("REFERENCEHIDDEN 0123456789abcdef,()\n\x1b", max_size=300).map(str.encode))
def test_hostile_text(text: bytes) -> None:
    state = decode_state(b"REFERENCE 7f00 POSIX timers, timer 1\n" + text)
    assert KernelReference(0x7F00, "POSIX timers", "timer 1") in state.references
    assert all(one.value < 1 << 64 and one.name.isprintable() for one in state.references)
    assert all(name.isprintable() and 0 <= count <= 1 << 31 for name, count in state.hidden.items())


def test_names_of_descriptors_that_are_counted_together() -> None:
    few = ["/tmp/a-1", "/tmp/a-2", "pipe", "pipe"]
    assert count_names(few) == {"/tmp/a-1": 1, "/tmp/a-2": 1, "pipe": 2}
    merged = merge_numbered_files(count_names(few))
    assert merged == {"files /tmp/a-#": 2, "pipe": 2}
    assert merge_numbered_files({**merged, "/tmp/a-3": 1, "/tmp/b-1": 1}) == {"files /tmp/a-#": 3, "pipe": 2, "/tmp/b-1": 1}
    many = count_names([*(f"/tmp/a-{number}" for number in range(1000)), "/tmp/b-1", *["TCP socket"] * 5])
    assert many == {"files /tmp/a-#": 1000, "TCP socket": 5, "/tmp/b-1": 1}
    often = count_names([f"/log-{number}" for number in range(80)] + ["/log-7"] * 200)
    assert often == {"/log-7": 201, "files /log-#": 79}
    letters = [chr(code) for code in range(ord("A"), ord("A") + 70)]
    rest = count_names([f"/{letter}" for letter in letters for _ in range(3)])
    assert len(rest) == 64 and rest[OTHERS] == 3 * 7
