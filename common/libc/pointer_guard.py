"""The key with which glibc encodes addresses, such as those that setjmp saves in a jmp_buf.

On x86-64, setjmp stores rbp, rsp and the program counter as (address ^ key) rotated left by 17 bits
(glibc 2.36 sysdeps/unix/sysv/linux/x86_64/pointer_guard.h). The key is in the control block of each
thread (pointer_guard of tcbhead_t, sysdeps/x86_64/nptl/tls.h)."""

from __future__ import annotations

from findleaks.target.arch import X86_64
from findleaks.target.base import Target
from findleaks.target.words import word_at

ROTATION = 17  # bits
_KEY = 0x30  # bytes from the thread pointer to the key
_RANDOM = 1 << 40  # smaller words are not considered keys: musl has two small 32-bit numbers there


def read_pointer_guard(target: Target) -> int:
    """Return the key; 0 if it is unknown."""
    if target.arch != X86_64:
        return 0
    pointer = next((thread.thread_pointer for thread in target.threads() if thread.thread_pointer), 0)
    key = word_at(target, pointer + _KEY) if pointer else 0
    return key if key >= _RANDOM else 0
