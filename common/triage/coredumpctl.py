"""Read systemd's journal to find crashes whose cores are no longer available."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections import Counter
from typing import Any

LONGEST = 30.0  # timeout of coredumpctl in seconds


def absent() -> str:
    """Return a line about the crashes that coredumpctl lists without a readable core, by reason.
    Returns "" if there are none, or if coredumpctl is not installed.

    The key "corefile" of `coredumpctl list --json=short` (systemd 248 and later) is the state of
    each core: "present", "missing" (removed because of age or size), "truncated", "inaccessible",
    "journal" (inside the journal), "none" (never stored)."""
    program = shutil.which("coredumpctl")
    if program is None:
        return ""
    command = [program, "list", "--json=short", "--no-pager", "--quiet"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=LONGEST)
        entries: Any = json.loads(done.stdout) if done.stdout.strip() else []
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return f"coredumpctl gave no list ({type(error).__name__}): only core files are read"
    states = (
        Counter(str(entry.get("corefile", "none")) for entry in entries if isinstance(entry, dict)) if isinstance(entries, list) else {}
    )
    left = {state: count for state, count in sorted(states.items()) if state not in ("present", "truncated")}
    if not left:
        return ""
    said = ", ".join(f"{count:,} {state}" for state, count in left.items())
    return f"coredumpctl lists {sum(left.values()):,} more crashes whose cores cannot be read: {said}"
