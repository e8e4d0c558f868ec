"""Text of `diff` about open descriptors: how many more are open, by what they refer to."""

from __future__ import annotations

from findleaks.formatting import shorten
from findleaks.target.base import MEMFD
from findleaks.target.kernel_references import NUMBERED_FILES, is_socket

_WIDEST = 200
_KINDS = {
    "pipe": "pipe ends",
    "anon_inode:[eventpoll]": "epoll descriptors",
    "anon_inode:[io_uring]": "io_uring descriptors",
    "anon_inode:[eventfd]": "eventfds",
    "anon_inode:[pidfd]": "pidfds",
    "anon_inode:[signalfd]": "signalfds",
    "anon_inode:[timerfd]": "timerfds",
    "anon_inode:[userfaultfd]": "userfaultfds",
    "anon_inode:inotify": "inotify descriptors",
    "anon_inode:[fanotify]": "fanotify descriptors",
    "anon_inode:bpf-map": "BPF maps",
    "anon_inode:bpf-prog": "BPF programs",
    "anon_inode:[perf_event]": "perf events",
    "anon_inode:dmabuf": "DMA buffers",
}
"""Names by the target of the link in /proc/PID/fd."""
_CALLS = {
    "pipe": ("pipe2", "pipe"),
    "anon_inode:[eventpoll]": ("epoll_create1",),
    "anon_inode:[eventfd]": ("eventfd",),
    "anon_inode:[timerfd]": ("timerfd_create",),
    "anon_inode:[signalfd]": ("signalfd",),
    "anon_inode:inotify": ("inotify_init1", "inotify_init"),
}
"""The functions of libc that open a descriptor of a kind."""


def describe_descriptors(name: str) -> str:
    """Return the name of a figure of the section "descriptor" for output: "open TCP sockets", "open
    descriptors of /tmp/a"."""
    if name in _KINDS:
        return f"open {_KINDS[name]}"
    if is_socket(name):
        return f"open {name}s"
    if name.startswith(MEMFD):
        return f"open memfds named {shorten(name[len(MEMFD) :].removesuffix(' (deleted)'), _WIDEST)}"
    return f"open descriptors of {shorten(name, _WIDEST)}"


def suggest_calls(name: str) -> tuple[str, ...]:
    """Return commands for a running process that show which code opens such descriptors."""
    if is_socket(name):
        return "count 'accept*'", "count socket"
    if name.startswith(MEMFD):
        return ("count memfd_create",)
    if name.startswith(("/", NUMBERED_FILES)):
        return "count open", "count openat"
    return tuple(f"count {call}" for call in _CALLS.get(name, ()))
