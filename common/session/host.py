"""The host of a session: the program that opened its target, and what this program offers to
commands."""

from __future__ import annotations

import time
from collections.abc import Callable, MutableMapping
from typing import TYPE_CHECKING, Optional

if TYPE_CHECKING:
    from findleaks.session import Session

from findleaks.value_classes import dataclass, field


@dataclass
class Host:
    """The command line with a core, or a script. Other hosts are subclasses."""


@dataclass
class DebuggerHost(Host):
    """A debugger. `snapshots`: the snapshots that it stores, by name. They remain when a session
    ends."""

    snapshots: MutableMapping[str, object]


@dataclass
class LiveHost(Host):
    """The command line with a live process, which keeps running. `reopen` reads the process again.
    `wait` waits for a number of seconds between two reads."""

    reopen: Callable[[], Session]
    wait: Callable[[float], None] = field(default=time.sleep)


def debugger_snapshots(host: Host) -> Optional[MutableMapping[str, object]]:
    """The snapshots of a debugger; None if the host is not a debugger."""
    return host.snapshots if isinstance(host, DebuggerHost) else None
