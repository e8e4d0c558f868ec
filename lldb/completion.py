"""Complete the words of a command in LLDB, as GDB does."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

BY_LLDB: Any = False
NOTHING: Any = {"values": []}


def completes_words(version: str) -> bool:
    """Whether this LLDB asks a command for the completions of its words. LLDB 20 is the first
    version that does. `version`: as SBDebugger.GetVersionString returns it. Apple
    numbers its versions differently, so they are not recognised."""
    found = re.match(r"lldb version (\d+)\.", version)
    return found is not None and int(found[1]) >= 20


def complete_word(before: Sequence[str], last: str, names: Sequence[str]) -> Any:
    """Return the completions of `last` in the form that LLDB expects from
    handle_argument_completion.

    `before`: the words before it; the first is the command. `names`: names of snapshots."""
    from findleaks import commands  # not needed to register the commands

    found = commands.complete(before, last, names)
    if found:
        return {"values": found}
    cmd = commands.find_command(before[0]) if before else None
    if cmd is None or last.startswith("-"):
        return NOTHING
    if commands.takes_file(cmd, before[-1]):
        return _complete_file(last)
    if commands.takes_value(cmd, before[-1]):
        return NOTHING
    # LLDB completes files only for commands that take files, and names of the program for others.
    return NOTHING if cmd.entry.completes == "file" and not cmd.takes_snapshots else BY_LLDB


def _complete_file(last: str) -> Any:
    """Return the files and directories whose paths begin with `last`."""
    folder, name = os.path.split(last)
    try:
        with os.scandir(os.path.expanduser(folder) or ".") as entries:
            found = sorted(os.path.join(folder, one.name) + "/" * one.is_dir() for one in entries if one.name.startswith(name))
    except OSError:
        return NOTHING
    if len(found) == 1 and found[0].endswith("/"):
        return {"completion": found[0], "mode": "partial"}
    return {"values": found}
