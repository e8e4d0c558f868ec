"""Leaks of Java programs through well-known libraries: the first finding of `verdict` names the class, what retains it, and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import debian
import jvms
import maven
import pytest
import truth
from verdicts import finding, verdict

import cores

ROCKSDB = ("org.rocksdb:rocksdbjni:8.10.0", "254f285c350eeea7fc46a9b81e44dbd3cbb41dd2e501fcd7ac05b659fdfa6099")
ZSTD = ("com.github.luben:zstd-jni:1.5.5-11", "d75b2ced6059f81ad23e021c554259b906b6c4f2991cb772409827569ead4c1a")
TOMCAT = ("org.apache.tomcat.embed:tomcat-embed-core:9.0.86", "59ea2b094db0e428139f82d46993ed87d38c43027cebfeb811e96d18e998adef")
ANNOTATIONS = ("org.apache.tomcat:tomcat-annotations-api:9.0.86", "3b0a33626ad76a38491cdd6dbac111ff62b0dbff554feca573513e653f4eb750")
NETTY = (
    ("io.netty:netty-buffer:4.1.107.Final", "04eb1231c86a7011c48cd443a25dc2f397137e5ee0aac2f12f1c503f11f09e2a"),
    ("io.netty:netty-common:4.1.107.Final", "1231e7bd5f523d97280b89adefb3521132d45c22791318b9e0d462bd3ba1b8e9"),
)
JNA = ("net.java.dev.jna:jna:5.18.1", "260c4b1e22b1db9e110ee441c4f13ce115f841fa48c41d78750986214b395557")
SESSIONS = 15_000
ITERATORS, OPTIONS, DICTIONARIES, DEPLOYMENTS, BUFFERS = 9000, 2000, 300, 40, 1500

pytestmark = pytest.mark.matrix


def path_of(*artifacts: tuple[str, str]) -> str:
    return ":".join(str(maven.jar(name, digest, debian.cache() / "libraries" / "java")) for name, digest in artifacts)


def run_until_ready(folder: Path, program: str, libraries: str, *words: str, options: tuple[str, ...] = ()) -> cores.Running:
    jvms.compile_java(truth.PROGRAMS / f"{program}.java", folder, "-cp", libraries)
    command = [str(jvms.jdk() / "bin" / "java"), "-Xmx512m", *options, "-cp", f"{libraries}:{folder}", program, *words]
    return cores.Running(command, folder / "run")


def owners(found: dict[str, Any], name: str, count: int) -> dict[str, Any]:
    """The finding about native memory of Java objects, which is first, and is about so many objects of a class."""
    held = finding(found, "held-by-managed-objects")
    assert found["findings"][0] == held
    (top, *_) = held["evidence"]["types"]
    assert (top["name"], top["objects"]) == (name, count)
    assert f"close() of each {name}" in held["try"][0]
    return held


def test_iterators_of_rocksdb(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    with run_until_ready(tmp_path, "RocksIterators", path_of(ROCKSDB), str(ITERATORS), str(tmp_path / "base")) as running:
        held = owners(verdict("--pid", str(running.pid)), "org.rocksdb.RocksIterator", ITERATORS)
    assert "java.lang.Class of RocksIterators static .LOOKUPS → java.util.ArrayList.elementData" in held["cause"]


def test_options_of_rocksdb(tmp_path: Path) -> None:
    """The leaked options begin with numbers, not with a vtable, but they refer to an object of a class of RocksDB, which names the library.
    Stale words may refer to some options."""
    with run_until_ready(tmp_path, "RocksOptions", path_of(ROCKSDB), str(OPTIONS)) as running:
        found = verdict("--pid", str(running.pid))
    first = found["findings"][0]
    assert first == finding(found, "lost")
    assert "→ rocksdb::SkipListFactory" in first["cause"]
    assert first["bytes"] > 20_000 * OPTIONS


def test_dictionaries_of_zstd(tmp_path: Path) -> None:
    with run_until_ready(tmp_path, "ZstdDictionaries", path_of(ZSTD), str(DICTIONARIES)) as running:
        held = owners(verdict("--pid", str(running.pid)), "com.github.luben.zstd.ZstdDictCompress", DICTIONARIES)
    assert "java.lang.Class of ZstdDictionaries static .BY_TENANT → java.util.HashMap.table" in held["cause"]


WITHOUT_CLEANER = ("--add-opens=java.base/java.nio=ALL-UNNAMED", "-Dio.netty.tryReflectionSetAccessible=true")
"""JVM options with which Netty frees its buffers without a Cleaner, as it does with JDK 8."""


@pytest.mark.parametrize("options", [(), WITHOUT_CLEANER], ids=["cleaner", "no cleaner"])
@pytest.mark.parametrize("allocator", ["pooled", "unpooled"])
def test_buffers_of_netty(tmp_path: Path, allocator: str, options: tuple[str, ...]) -> None:
    """The path begins at the static variable QUEUE, even if a stale word refers to the array of the queue."""
    with run_until_ready(tmp_path, "NettyBuffers", path_of(*NETTY), str(BUFFERS), allocator, options=options) as running:
        found = verdict("--pid", str(running.pid))
    held = finding(found, "held-by-managed-objects")
    assert found["findings"][0] == held
    (top, *_) = held["evidence"]["types"]
    assert top["name"] == "java.nio.DirectByteBuffer" and top["native_bytes"] > 60_000 * BUFFERS
    queue = "java.lang.Class of NettyBuffers static .QUEUE → java.util.ArrayDeque.elements → java.lang.Object[] → io.netty."
    assert allocator == "pooled" or queue in held["cause"]
    assert held["try"][0] == "release() of each io.netty.buffer.ByteBuf that is not needed any more"


def test_buffers_of_netty_that_are_garbage(tmp_path: Path) -> None:
    """The objects of Netty are garbage, too. They contain the same addresses, but the Deallocators own the memory. Stale words
    may refer to a few buffers."""
    with run_until_ready(tmp_path, "NettyBuffers", path_of(*NETTY), str(BUFFERS // 2), "unpooled", "dropped") as running:
        found = verdict("--pid", str(running.pid))
    held = finding(found, "held-by-managed-objects")
    assert found["findings"][0] == held and held["text"].startswith("Garbage, not collected yet")
    (top, *_) = held["evidence"]["types"]
    assert top["name"] == "java.nio.DirectByteBuffer" and top["native_bytes"] > 54_000 * (BUFFERS // 2)


def test_memory_of_jna(tmp_path: Path) -> None:
    """Three objects have the address of each block: a Memory, its MemoryDisposer, and a Long in a table. The core lacks residency, and the
    JVM mapped many times as much memory for objects as it uses."""
    with run_until_ready(tmp_path, "JnaMemory", path_of(JNA), str(SESSIONS), "kept", options=("-Xms512m",)) as running:
        held = owners(verdict(str(running.gcore())), "com.sun.jna.Memory", SESSIONS)
    assert "java.lang.Class of JnaMemory static .SESSIONS → java.util.HashMap.table" in held["cause"]


def test_web_applications_that_are_redeployed(tmp_path: Path) -> None:
    """With these JVM options (no CDS archive, only the C1 compiler), class metadata is 19 % of private memory. The finding needs 10 %."""
    libraries = path_of(TOMCAT, ANNOTATIONS)
    classes = tmp_path / "application" / "WEB-INF" / "classes"
    classes.mkdir(parents=True)
    jvms.compile_java(truth.PROGRAMS / "RedeployedServlet.java", classes, "-cp", libraries)
    words = (str(tmp_path / "application"), str(tmp_path / "tomcat"), str(DEPLOYMENTS))
    options = ("-Xshare:off", "-XX:TieredStopAtLevel=1")
    with run_until_ready(tmp_path, "RedeployedApplication", libraries, *words, options=options) as running:
        found = verdict("--pid", str(running.pid))
    hooks, loader = (
        "java.lang.Class of java.lang.ApplicationShutdownHooks static .hooks",
        "org.apache.catalina.loader.ParallelWebappClassLoader",
    )
    first = found["findings"][0]
    assert hooks in first["cause"] and f"{loader} → java.lang.Class of RedeployedServlet static .CACHE" in first["cause"]
    metadata = finding(found, "class-metadata")
    assert metadata["evidence"]["loaders_by_type"][loader] == DEPLOYMENTS
    assert hooks in metadata["cause"] and metadata["cause"].index(loader) < metadata["cause"].index("DelegatingClassLoader")
