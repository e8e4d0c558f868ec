"""Test which libraries count as loaded by a Java program."""

from __future__ import annotations

import pytest
from fake import FakeTarget

from findleaks.runtimes.jvm.jni_libraries import list_loaded_libraries
from findleaks.target.base import Module

LIBJVM = "/opt/jdk8/jre/lib/amd64/server/libjvm.so"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/tmp/libzstd-jni-1.so (deleted)", "libzstd-jni-1.so"),
        ("/usr/lib/x86_64-linux-gnu/jni/libjna.so", "libjna.so"),
        ("/usr/lib/jvm/java-17/lib/libzip.so", ""),
        ("/opt/jdk8/jre/lib/amd64/libzip.so", ""),
        ("/opt/jdk8/lib/amd64/jli/libjli.so", ""),
        ("/opt/lib/libjemalloc.so", ""),
        ("/opt/lib/libc.so.6", ""),
        ("[vdso]", ""),
    ],
)
def test_loaded_libraries(path: str, name: str) -> None:
    """Libraries of the system, of the JDK, its launcher and allocators are left out."""
    modules = [Module(one, 0, 0, 0) for one in (LIBJVM, path, path)]
    assert list_loaded_libraries(FakeTarget({}, modules=modules), modules[0]) == ([name] if name else [])
