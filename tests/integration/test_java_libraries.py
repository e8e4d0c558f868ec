"""Leaks of Java programs through well-known libraries: the first finding of `verdict` names the class, what retains it, and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import debian
import jvms
import maven
import pytest
import truth
from debuggers import findleaks
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
SQLITE = (
    ("org.xerial:sqlite-jdbc:3.45.1.0", "f5f5404fa5a60f9e0b15e7bea2ea2d137e255f01babd0bfcb9dafcd2e3bf9cd2"),
    ("org.slf4j:slf4j-api:1.7.36", "d3ef575e3e4979678dc01bf1dcce51021493b4d11fb7f1be8ad982877c16a1c0"),
)
JNA = ("net.java.dev.jna:jna:5.18.1", "260c4b1e22b1db9e110ee441c4f13ce115f841fa48c41d78750986214b395557")
JETTY = (
    ("org.eclipse.jetty:jetty-webapp:9.4.54.v20240208", "46e934cafe13ad32163e762a20b568646c84c617dd969cc067e1f7eb6ff1bd98"),
    ("org.eclipse.jetty:jetty-server:9.4.54.v20240208", "96a3e929207cab7612aef2ed9e80a2d1514bd5cfba118f6d040677ae483398f3"),
    ("org.eclipse.jetty:jetty-servlet:9.4.54.v20240208", "8c2ffd1cc57f618faf8b212eb78405bb2d7f0b814ba3a3acaf784be702be7766"),
    ("org.eclipse.jetty:jetty-http:9.4.54.v20240208", "90e44ea0dba911fe23b7cc4554ea8761e92dfd803401e3888fe6eb10a07944e7"),
    ("org.eclipse.jetty:jetty-io:9.4.54.v20240208", "fd2b9b44fc4da25b6b15017f686d4c50e2cb4d68beca9602194ad9cefb97f777"),
    ("org.eclipse.jetty:jetty-util:9.4.54.v20240208", "0025f8470828d60dc93e6b5c33c015630b6b05a23afa8173ee7e60b928a4521e"),
    ("org.eclipse.jetty:jetty-security:9.4.54.v20240208", "7d17ec768603c33746f9f6f98849d7c9f8bc439a53d9e247702e19cea6c75ec8"),
    ("org.eclipse.jetty:jetty-xml:9.4.54.v20240208", "42b67d0d40ba0cfd9d047aae81a79a98ec759d872d1f8cfe0f6b9933dc1ea066"),
    ("javax.servlet:javax.servlet-api:3.1.0", "af456b2dd41c4e82cf54f3e743bc678973d9fe35bd4d3071fa05c7e5333b8482"),
)
UNDERTOW = (
    ("io.undertow:undertow-core:2.2.30.Final", "ba99936dc8def4881ea497cc3535817d4e48247cb80424326d27473ac1ea7241"),
    ("io.undertow:undertow-servlet:2.2.30.Final", "1564e8ef46998664e15a47b81b6cf31e2f2bdf83fb50887a933a462a28dfc42d"),
    ("org.jboss.xnio:xnio-api:3.8.7.Final", "3403d19c9c590dec94308295aff0f4a91217c6973b5015800acc9bf0e1359cae"),
    ("org.jboss.xnio:xnio-nio:3.8.7.Final", "e39811c7f60f53b2724907e8683f28963d42cdffacd9bdfa2353631ffe81c0f4"),
    ("org.jboss.logging:jboss-logging:3.4.1.Final", "8efe877d93e5e1057a1388b2950503b88b0c28447364fde08adbec61e524eeb8"),
    ("org.jboss.threads:jboss-threads:3.1.0.Final", "c9396af3b47ddddbce14335aaad5b85b49fa704f11e33da1c450fae3c3b98079"),
    ("org.wildfly.common:wildfly-common:1.5.4.Final", "9fda3caf8bd528dec56ebc70daf78f5a9ff5d0bfcea8b3e41ab7ae838747e46a"),
    ("org.wildfly.client:wildfly-client-config:1.0.1.Final", "80a4e963ce94ebb043ecb0f2c0e77d327f23dc87d81350b863752eedfa2c3bb3"),
    (
        "org.jboss.spec.javax.servlet:jboss-servlet-api_4.0_spec:2.0.0.Final",
        "641fb980e96e766cd08f4daf54dbb6c4b104154f74f50c5eb0f5c24f47e77565",
    ),
    (
        "org.jboss.spec.javax.annotation:jboss-annotations-api_1.3_spec:2.0.1.Final",
        "afc4e3b8701119c9a2ceb8cebe3fd1869a269de768d7d56e7b5051827a132368",
    ),
)
LWJGL = (
    ("org.lwjgl:lwjgl:3.3.3", "dc9c7b2d48e8396d68895f8902ffa01e46253de44dfe927533ff09457ebfeec4"),
    ("org.lwjgl:lwjgl:3.3.3:jar:natives-linux", "e663738c519a06f6d659882fa8e4e09af7f10e921929ee5cc54a7587f62ed4c9"),
)
SESSIONS, DATABASES = 15_000, 40
ITERATORS, OPTIONS, DICTIONARIES, DEPLOYMENTS, BUFFERS, MESHES, STREAMS, CONNECTIONS = 9000, 2000, 300, 40, 1500, 1000, 300, 400
WEB_XML = """<web-app xmlns="http://xmlns.jcp.org/xml/ns/javaee" version="3.1">
<servlet><servlet-name>page</servlet-name><servlet-class>RedeployedLeaks</servlet-class></servlet>
<servlet-mapping><servlet-name>page</servlet-name><url-pattern>/page</url-pattern></servlet-mapping></web-app>"""

pytestmark = pytest.mark.matrix


def path_of(*artifacts: tuple[str, str]) -> str:
    return ":".join(str(maven.jar(name, digest, debian.cache() / "libraries" / "java")) for name, digest in artifacts)


def run_until_ready(folder: Path, program: str, libraries: str, *words: str, options: tuple[str, ...] = ()) -> cores.Running:
    jvms.compile_java(truth.PROGRAMS / f"{program}.java", folder, "-cp", libraries)
    command = [str(jvms.jdk() / "bin" / "java"), "-Xmx512m", *options, "-cp", f"{libraries}:{folder}", program, *words]
    return cores.Running(command, folder / "run")


def owners(found: dict[str, Any], name: str, count: int) -> dict[str, Any]:
    """Check that the first finding is about native memory of Java objects, with this number of objects of a class. Return it."""
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


@pytest.mark.parametrize("kind", ["tables", "cache"])
def test_stores_of_rocksdb(kind: str, tmp_path: Path) -> None:
    """Several objects reach the memory, and so do registers of a thread that used the cache. Names of classes contain stale words that look
    like pointers into the cache."""
    (tmp_path / "base").mkdir()
    with run_until_ready(tmp_path, "RocksStores", path_of(ROCKSDB), kind, str(tmp_path / "base")) as running:
        found = verdict("--pid", str(running.pid))
    held = finding(found, "held-by-many")
    assert found["findings"][0] == held and held["bytes"] > 30_000_000
    assert "java.lang.Class of RocksStores static ." in held["cause"] and " → org.rocksdb." in held["cause"]
    assert held["try"] and "close() of each org.rocksdb." in held["try"][0]


@pytest.mark.parametrize("kept", [(), ("kept",)], ids=["dropped", "one kept"])
def test_options_of_rocksdb(kept: tuple[str, ...], tmp_path: Path) -> None:
    """The leaked options begin with numbers, not with a vtable, but they refer to an object of a class of RocksDB, which names the library.
    Stale words may refer to some options. A live object owns a block of the same size: its class alone is named."""
    with run_until_ready(tmp_path, "RocksOptions", path_of(ROCKSDB), str(OPTIONS), *kept) as running:
        found = verdict("--pid", str(running.pid))
    first = found["findings"][0]
    assert first == finding(found, "lost")
    assert "→ rocksdb::SkipListFactory" in first["cause"]
    names = first["evidence"]["native_classes"]["names"]
    assert "org.rocksdb.ColumnFamilyOptions" in names
    if kept:
        assert names == ["org.rocksdb.ColumnFamilyOptions"]
        assert "org.rocksdb.ColumnFamilyOptions (1 live, which owns a block of this size)" in first["cause"]
    assert first["bytes"] > 20_000 * OPTIONS


@pytest.mark.parametrize("version", [jvms.SYSTEM, "21.0.4"])
def test_dropped_databases_of_rocksdb(version: str, tmp_path: Path) -> None:
    """Static variables and threads of the library keep the databases reachable. The Java objects that owned them were collected. No thread,
    class loader or module of Java owns them, although words that the JVM added to these objects lead to its own structures."""
    options, libraries = ("-Xmx256m",), path_of(ROCKSDB)
    words = (str(DATABASES), str(tmp_path))
    with run_version(tmp_path, version, "RocksDropped", libraries, *words, options=options) as running:
        found = verdict("--pid", str(running.pid))
    held = finding(found, "held-by-many")
    assert found["findings"][0] == held and held["bytes"] > DATABASES << 20
    assert "One of them is reached through rocksdb::DBImpl, to which no live object refers." in held["cause"]
    assert "org.rocksdb.RocksDB" in held["evidence"]["native_classes"]["names"]
    assert held["try"][0].startswith("if such objects owned the blocks: close() of each ")


def test_caches_of_rocksdb(tmp_path: Path) -> None:
    """The leaked blocks are shared pointers to objects of a type, which tells the Java class. Objects of another class own blocks of the
    same size."""
    with run_until_ready(tmp_path, "RocksOptions", path_of(ROCKSDB), str(OPTIONS), "caches") as running:
        lost = finding(verdict("--pid", str(running.pid)), "lost")
    assert lost["evidence"]["native_classes"]["names"] == ["org.rocksdb.LRUCache"]
    assert "counters of std::shared_ptr<rocksdb::lru_cache::LRUCache>" in lost["cause"]


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
    """The objects of Netty are garbage, too. They contain the same addresses, but the Deallocators own the memory. Stale words may refer
    to a few buffers."""
    with run_until_ready(tmp_path, "NettyBuffers", path_of(*NETTY), str(BUFFERS // 2), "unpooled", "dropped") as running:
        found = verdict("--pid", str(running.pid))
    held = finding(found, "held-by-managed-objects")
    assert found["findings"][0] == held and held["text"].startswith("Garbage, not collected yet")
    (top, *_) = held["evidence"]["types"]
    assert top["name"] == "java.nio.DirectByteBuffer" and top["native_bytes"] > 54_000 * (BUFFERS // 2)


def test_buffers_in_a_fast_thread_local_of_netty(tmp_path: Path) -> None:
    """Netty's thread has its own map of thread-local variables. The path ends with the name of the thread."""
    with run_until_ready(tmp_path, "NettyLocals", path_of(*NETTY), str(BUFFERS // 2)) as running:
        found = verdict("--pid", str(running.pid))
    held = finding(found, "held-by-managed-objects")
    assert found["findings"][0] == held
    assert "FastThreadLocalThread.threadLocalMap → " in held["cause"] and '(Java thread "codec-7")' in held["cause"]


def test_memory_of_jna(tmp_path: Path) -> None:
    """Three objects have the address of each block: a Memory, its MemoryDisposer, and a Long in a table. The core does not record
    resident pages, and the JVM mapped much more memory for objects than it uses."""
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


HOLDERS = {
    "local": (("thread-local variable RedeployedLeaks.CONTEXT",), "ThreadLocal.remove()"),
    "handler": (("java.util.logging.Logger static .global → ",), "Logger.removeHandler()"),
    "timer": (("java.util.TimerThread.contextClassLoader → ", "task queues of "), "Timer.cancel() for each java.util.Timer"),
    "thread": (("java.lang.Thread.contextClassLoader → ", 'stack of Java thread "Thread-'), "end "),
    "bean": (("java.lang.management.ManagementFactory static .platformMBeanServer → ",), "MBeanServer.unregisterMBean()"),
}
"""For each leak: the names of which the finding of `verdict` contains one, and the beginning of the remedy."""


@pytest.mark.parametrize("leak", HOLDERS)
@pytest.mark.parametrize(
    ("server", "version", "collector"),
    [("Jetty", "25.0.2", "-XX:+UseParallelGC"), ("Undertow", "8", "-XX:+UseG1GC")],
    ids=["jetty", "undertow"],
)
def test_class_loaders_of_other_servers(server: str, version: str, collector: str, leak: str, tmp_path: Path) -> None:
    """In JDK 8, each lambda of the servlet has a ClassLoaderData with the class loader of the servlet, which counts once."""
    libraries = path_of(*(JETTY if server == "Jetty" else UNDERTOW))
    classes = tmp_path / "application" / "WEB-INF" / "classes"
    classes.mkdir(parents=True)
    (classes.parent / "web.xml").write_text(WEB_XML)
    jvms.compile_java(truth.PROGRAMS / "RedeployedLeaks.java", classes, "--release", "8", "-cp", libraries)
    words = (str(tmp_path / "application"), str(DEPLOYMENTS), leak)
    with run_version(tmp_path, version, f"Redeployed{server}", libraries, *words, options=(collector,)) as running:
        found = verdict("--pid", str(running.pid))
    held, (holders, remedy) = finding(found, "retained-objects"), HOLDERS[leak]
    loader = "org.eclipse.jetty.webapp.WebAppClassLoader" if server == "Jetty" else "java.net.URLClassLoader"
    text = f"{held['text']} {held['cause']}"
    # Unused parts of the Java heap may be larger.
    assert held in found["findings"][:2] and found["findings"][0]["finding"] in ("retained-objects", "unused-java-heap")
    assert any(holder in text for holder in holders) and (loader in text or "RedeployedLeaks" in text)
    assert held["try"][0].startswith(remedy)
    assert held["bytes"] > 0.9 * 500_000 * DEPLOYMENTS
    metadata = [one for one in found["findings"] if one["finding"] == "class-metadata"]
    assert all(one["evidence"]["loaders_by_type"][loader] == DEPLOYMENTS for one in metadata)
    assert metadata or server == "Jetty"


def test_memory_of_lwjgl(tmp_path: Path) -> None:
    """These direct buffers have no Cleaner, so the remedy is not to drop them."""
    with run_until_ready(tmp_path, "LwjglMemory", path_of(*LWJGL), str(MESHES)) as running:
        held = finding(verdict("--pid", str(running.pid)), "held-by-managed-objects")
    (top, *_) = held["evidence"]["types"]
    assert top["name"] == "java.nio.DirectByteBuffer" and top["native_bytes"] > 30_000 * MESHES
    assert "java.lang.Class of LwjglMemory static .MESHES" in held["cause"]
    assert held["try"] == [
        "free these buffers as their library documents (LWJGL: MemoryUtil.memFree()): the collector frees only the objects"
    ]


@pytest.mark.parametrize("version", [jvms.SYSTEM, "8"])
def test_connections_of_sqlite(version: str, tmp_path: Path) -> None:
    """Objects of several classes refer to each database, so no class alone retains it. Stale words lead from variables of libjvm, and from
    the metaspace, to some databases: these do not retain them. The core does not record resident pages."""
    options = ("-XX:+UseSerialGC", "-Xmx48m")  # the databases are larger than the Java heap
    with run_version(tmp_path, version, "SqliteConnections", path_of(*SQLITE), str(CONNECTIONS), options=options) as running:
        core = str(running.kernel_core())
    found, retained = verdict(core), json.loads(findleaks("roots", "--json", core))
    held = finding(found, "held-from-managed-heap")
    assert found["findings"][0] == held and held["bytes"] > 75_000 * CONNECTIONS
    assert "org.sqlite.jdbc4.JDBC4Connection.db → org.sqlite.core.NativeDB" in held["cause"]
    first = retained["roots"][0]
    assert first["name"].startswith("JVM's Java heap") and first["retained_bytes"] > 75_000 * CONNECTIONS
    assert held["try"] == ["close() of each org.sqlite.jdbc4.JDBC4Connection that is not needed any more, as in try-with-resources"]


@pytest.mark.parametrize("version", [jvms.SYSTEM, "21.0.4"])
def test_words_of_compilers_refer_to_no_leaks(version: str, tmp_path: Path) -> None:
    """The blocks take 1 GiB of addresses. Arenas of the compilers, and entries of hash tables, contain words with the upper half of such an
    address. If these words counted, a tenth of the memory would be possibly lost."""
    with run_version(tmp_path, version, "ZstdStreams", path_of(ZSTD), str(STREAMS), "out", "none") as running:
        kinds = json.loads(findleaks("find", "--json", "--pid", str(running.pid)))["totals"]
    leaked = kinds["definite"]["bytes"] + kinds["indirect"]["bytes"]
    assert leaked > 3_000_000 * STREAMS and kinds["possible"]["bytes"] < leaked // 20, kinds


@pytest.mark.parametrize("version", ["25.0.2", "8"])
@pytest.mark.parametrize(("kind", "kept"), [("in", "some"), ("out", "none")])
def test_collected_streams_of_zstd(version: str, kind: str, kept: str, tmp_path: Path) -> None:
    """The native memory is leaked, and the objects that owned it were collected. The finding names the class of remaining objects with
    memory of the same size, and otherwise the library and its classes that the program has used."""
    with run_version(tmp_path, version, "ZstdStreams", path_of(ZSTD), str(STREAMS), kind, kept) as running:
        found = verdict("--pid", str(running.pid))
    lost = finding(found, "lost")
    assert found["findings"][0] == lost and "libzstd-jni-" in lost["cause"]
    name = "com.github.luben.zstd.ZstdInputStreamNoFinalizer"
    if kept == "some":
        owner = lost["evidence"]["living_owner"]
        assert (owner["type"], owner["blocks"]) == (name, STREAMS // 10)
        assert owner["inferred"] is True and owner["sampled"] == 8
        assert (
            f"are reachable, and objects of {name} refer to all 8 sampled ones" in lost["cause"]
            and "Inferred from the size" in lost["cause"]
        )
        assert "java.lang.Class of ZstdStreams static .KEPT → " in lost["cause"]
        remedy = f"close() of each {name} that is not needed any more, as in try-with-resources"
        assert lost["try"] == [f"if such objects owned the blocks: {remedy}"]
    else:
        libraries, classes = lost["evidence"]["loaded_libraries"], lost["evidence"]["native_classes"]
        assert "the process has loaded only libzstd-jni-" in lost["cause"] and "Inferred: " in lost["cause"]
        assert len(libraries["names"]) == 1 and libraries["inferred"] is True
        assert "com.github.luben.zstd.ZstdOutputStreamNoFinalizer" in classes["names"] and classes["inferred"] is True
        assert not [one for one in classes["names"] if "Input" in one]  # of a class that the program has not used
        assert "living_owner" not in lost["evidence"] and lost["try"][0].startswith("if such objects owned the blocks: close() of each ")


@pytest.mark.parametrize("version", [jvms.SYSTEM, "25.0.2"])
def test_leaked_blocks_of_unsafe(version: str, tmp_path: Path) -> None:
    """No object has the size of the leaked blocks, and the program loaded no library."""
    jvms.compile_java(truth.PROGRAMS / "UnsafeBlocks.java", tmp_path)
    command = jvms.command(version, tmp_path, "UnsafeBlocks", str(SESSIONS), options=("-Xmx64m", "-XX:+UseSerialGC"))
    with cores.Running(command, tmp_path / "run") as running:
        found = verdict("--pid", str(running.pid))
    lost, functions = finding(found, "lost"), ["sun.misc.Unsafe.allocateMemory()"]
    if version != jvms.SYSTEM:
        functions += ["java.lang.foreign.Arena.ofShared()", "java.lang.foreign.Arena.ofConfined()"]
    assert found["findings"][0] == lost and lost["bytes"] > 20_000 * (SESSIONS - 10)
    assert lost["evidence"]["allocating_functions"] == {"names": functions, "inferred": True}
    assert f"Inferred from this: the program may have called {' or '.join(functions)} and not freed" in lost["cause"]


def run_version(folder: Path, version: str, program: str, libraries: str, *words: str, options: tuple[str, ...] = ()) -> cores.Running:
    """Run the program until it is ready, with a JVM of another version."""
    jvms.compile_java(truth.PROGRAMS / f"{program}.java", folder, "--release", "8", "-cp", libraries)
    command = jvms.command(version, folder, program, *words, options=("-Xmx256m", *(options or ("-XX:+UseSerialGC",))))
    paths = (str(folder), f"-Djava.class.path={folder}")  # the arguments with the class path
    command = [word.replace(str(folder), f"{folder}:{libraries}") if word in paths else word for word in command]
    return cores.Running(command, folder / "run")
