"""Test which libraries count as loaded by a Java program."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from fake import FakeTarget

from findleaks.runtimes.jvm.jni_libraries import list_allocating_functions, list_loaded_libraries
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


@pytest.mark.parametrize(("program", "version", "count"), [("java", 17, 1), ("java", 25, 3), ("java (deleted)", 25, 3), ("server", 25, 0)])
def test_allocating_functions(program: str, version: int, count: int) -> None:
    """A program other than `java` may call malloc itself."""
    target = FakeTarget({}, modules=[Module(f"/opt/jdk/bin/{program}", 0, 0, 0), Module(LIBJVM, 0, 0, 0)])
    tables: Any = SimpleNamespace(target=target, int32=lambda kind, field: version)
    assert len(list_allocating_functions(tables)) == count
