"""Read the environment variables that a process was started with."""

from __future__ import annotations

import re
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.target.ranges import region_at

LONGEST = 256 << 10  # bytes at the end of the main thread's stack that are searched
VALUE = 4096  # the largest length of a value in bytes


def read_variable(memory: Memory, variable: str) -> Optional[str]:
    """Return the value that an environment variable had when the process started, or None if it is
    not found.

    The kernel writes the environment to the end of the stack. Copies at lower addresses are stale,
    and may be incomplete: "MALLOC_CONF=prof:true,l" was found below
    "MALLOC_CONF=prof:true,lg_prof_sample:0"."""
    target = memory.target
    for thread in target.threads()[:1]:
        region = region_at(target.regions(), thread.sp)
        if region is not None:
            length = min(LONGEST, region.end - region.start)
            pattern = rb"\0%s=([^\0]{0,%d})\0" % (re.escape(variable.encode()), VALUE)
            *_, last = [None, *re.finditer(pattern, memory.read(region.end - length, length))]
            if last is not None:
                return last[1].decode("utf-8", "replace")
    return None
