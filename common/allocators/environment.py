"""Settings that a process was started with, by its environment."""

from __future__ import annotations

import re
from typing import Optional

from findleaks.allocators.memory import Memory
from findleaks.target.ranges import region_at

LONGEST = 256 << 10  # bytes that are searched, at the end of the first stack
VALUE = 4096  # bytes of a value, at most


def setting(memory: Memory, variable: str) -> Optional[str]:
    """The value of an environment variable, as it was at the start; None if not found."""
    target = memory.target
    for thread in target.threads()[:1]:
        region = region_at(target.regions(), thread.sp)
        if region is not None:
            length = min(LONGEST, region.end - region.start)
            pattern = rb"\0%s=([^\0]{0,%d})\0" % (re.escape(variable.encode()), VALUE)
            match = re.search(pattern, memory.read(region.end - length, length))
            if match:
                return match[1].decode("utf-8", "replace")
    return None
