"""List the files that this process has open."""

from __future__ import annotations

import gc
import os


def open_descriptors() -> set[str]:
    """Return the numbers of this process's open file descriptors.

    First close the files of earlier tests that are referenced only from garbage cycles. Otherwise the garbage collector closes them at any
    time, and the result of a test that compares two sets depends on that time.
    """
    gc.collect()
    return set(os.listdir("/proc/self/fd"))
