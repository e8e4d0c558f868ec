"""`verdict` reports the class of Java objects that retain native memory, and how much of the memory is resident."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jvms
import pytest
import truth
from debuggers import ROOT, findleaks
from verdicts import finding, verdict

from cores import Running

COUNT = 300
EACH = 200_000  # zlib's deflate allocates 268 KB: zconf.h, default MEM_LEVEL and window bits
FLAGS = ("-Xmx64m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:CompressedClassSpaceSize=16m", "-XX:ReservedCodeCacheSize=16m")


def test_held_from_java(tmp_path: Path) -> None:
    jvms.compile_java(ROOT / "tests/programs/HeldDeflaters.java", tmp_path)
    with Running(["java", *FLAGS, "-cp", str(tmp_path), "HeldDeflaters", str(COUNT)], tmp_path / "run") as run:
        found = verdict("--pid", str(run.pid))
        core = run.kernel_core()
    for one in (found, verdict(str(core))):
        held = finding(one, "held-by-managed-objects")
        (top, *_) = held["evidence"]["types"]
        assert (top["name"], top["objects"]) == ("java.util.zip.Deflater$DeflaterZStreamRef", COUNT)
        assert COUNT * EACH < top["native_bytes"] < COUNT * 300_000
        assert 5 * COUNT <= top["native_blocks"] <= 6 * COUNT  # deflate's state, window, two tables, and pending output
        assert f"{COUNT} objects of java.util.zip.Deflater$DeflaterZStreamRef retain" in held["cause"]
        assert (
            "java.util.ArrayList.elementData → java.lang.Object[] → java.util.zip.Deflater.zsRef → java.util.zip.Deflater$" in held["cause"]
        )
        assert held["next"][0] == "runtime"
        assert held["try"][0].startswith("end() of java.util.zip.Inflater and Deflater")
        assert held["next"][1].startswith("path 0x")
        (share,) = [share for share in one["shares"] if share["share"] == "in-use"]
        assert held["bytes"] > share["bytes"]  # most of a window was never written
        heaps = sum(each["bytes"] for each in one["shares"] if each["share"] == "runtime")
        assert held["resident_bytes"] <= share["bytes"] + heaps
        assert "objects of JVM retain" in held["text"]
        assert one["findings"][0] == held


@pytest.mark.matrix
@pytest.mark.parametrize("version", ["8", "25.0.2"])
def test_held_by_a_thread_local_variable(version: str, tmp_path: Path) -> None:
    """The remedies free the memory itself, and the value of the variable."""
    jvms.compile_java(ROOT / "tests/programs/HeldDeflaters.java", tmp_path, "--release", "8")
    with Running(jvms.command(version, tmp_path, "HeldDeflaters", str(COUNT), "local", options=("-Xmx64m",)), tmp_path / "run") as run:
        held = finding(verdict("--pid", str(run.pid)), "held-by-managed-objects")
    assert "(thread-local variable HeldDeflaters.local)" in held["cause"]
    assert [remedy.partition("()")[0] for remedy in held["try"]] == ["end", "ThreadLocal.remove"]


@pytest.mark.parametrize("count", [pytest.param(3000, marks=pytest.mark.matrix), 800])
def test_class_loaders_that_a_list_keeps(count: int, tmp_path: Path) -> None:
    """The finding names the static variable that keeps the class loaders, and suggests the path to one of them. 800 class loaders have only
    5 MiB of class metadata; the finding is reported because there are many class loaders of one type."""
    jvms.compile_java(ROOT / "tests/programs/ClassLoaders.java", tmp_path, "--release", "17")
    words = [
        str(jvms.jdk() / "bin" / "java"),
        "-Xint",
        "-XX:+UseSerialGC",
        "-Xmx256m",
        "-cp",
        str(tmp_path),
        "ClassLoaders",
        str(count),
        "0",
    ]
    with Running(words, tmp_path) as run:
        found = verdict("--pid", str(run.pid))
        one = finding(found, "class-metadata")
        assert one["evidence"]["loaders_by_type"]["ClassLoaders$Loader"] == count
        assert "java.lang.Class of ClassLoaders static .KEPT → java.util.ArrayList.elementData → java.lang.Object[]" in one["cause"]
        (word,) = [word for word in one["next"] if word.startswith("path ")]
        path = json.loads(findleaks(*word.split(), "--json", "--pid", str(run.pid)))
    assert path["target"]["object"]["type"] == "ClassLoaders$Loader"


def test_values_of_thread_local_variables(tmp_path: Path) -> None:
    """The finding names the thread-local variable, and the path from threads to its values. If a stale word on the stack of a thread refers
    to the thread's map or to the table of this map, the path begins at this map or table."""
    jvms.compile_java(ROOT / "tests/programs/ThreadContexts.java", tmp_path)
    with Running(["java", *FLAGS, "-cp", str(tmp_path), "ThreadContexts", "4000"], tmp_path / "run") as run:
        held = finding(verdict("--pid", str(run.pid)), "retained-objects")
    path = "java.lang.ThreadLocal$ThreadLocalMap$Entry.value → ThreadContexts$Context"
    assert f"{path} (thread-local variable ThreadContexts$Task.context)." in held["cause"]


@pytest.mark.parametrize(
    ("version", "kind", "options"),
    [
        (jvms.SYSTEM, "soft", ("-XX:+UseSerialGC",)),
        pytest.param("8", "soft", (), marks=pytest.mark.matrix),
        *(pytest.param(version, "soft", (), marks=pytest.mark.matrix) for version in ("11", *jvms.VERSIONS)),
        *(pytest.param(jvms.SYSTEM, "soft", (f"-XX:+Use{name}GC",), marks=pytest.mark.matrix) for name in ("Parallel", "Shenandoah", "Z")),
        *(pytest.param(version, "inherited", (), marks=pytest.mark.matrix) for version in ("11", *jvms.VERSIONS)),
    ],
)
def test_objects_to_which_a_stack_refers(version: str, kind: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """The finding names the variable that keeps the objects, and not the stack or the word of the JVM that also refers to them."""
    jvms.compile_java(ROOT / "tests/programs/JavaHolders.java", tmp_path, "--release", "8")
    with Running(jvms.command(version, tmp_path, "JavaHolders", kind, options=("-Xmx256m", "-Xint", *options)), tmp_path) as run:
        one = finding(verdict("--pid", str(run.pid)), "retained-objects")
    (remedy,) = one["try"]
    if kind == "soft":
        assert "In use, not leaked: static variable JavaHolders.REGISTRY retains 3" in one["text"]
        assert "→ java.lang.ref.SoftReference.referent → JavaHolders$Page.content → byte[]." in one["cause"]
        assert "-XX:SoftRefLRUPolicyMSPerMB" in remedy
    else:
        assert "thread-local variable JavaHolders.INHERITED of 100 threads retains 38 MiB in 1 object of JVM" in one["text"]
        assert "ThreadLocal.remove() before threads are created" in remedy


@pytest.mark.matrix
@pytest.mark.parametrize("version", ["8", "11", *jvms.VERSIONS])
def test_few_large_buffers(version: str, tmp_path: Path) -> None:
    """The path leads to one of the two buffers with nearly all of the memory, not to one of 2,000 small ones."""
    jvms.compile_java(ROOT / "tests/programs/JavaHolders.java", tmp_path, "--release", "8")
    with Running(jvms.command(version, tmp_path, "JavaHolders", "buffers", options=("-Xmx256m", "-Xint")), tmp_path) as run:
        held = finding(verdict("--pid", str(run.pid)), "held-by-managed-objects")
    assert "JavaHolders static .LARGE → java.util.ArrayList.elementData" in held["cause"]
    assert [remedy.partition("=")[0] for remedy in held["try"]] == ["-XX:MaxDirectMemorySize"]


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        (jvms.SYSTEM, "util"),
        *(pytest.param(version, kind, marks=pytest.mark.matrix) for version in ("8", "11", *jvms.VERSIONS) for kind in ("util", "own")),
        pytest.param(jvms.SYSTEM, "own", marks=pytest.mark.matrix),
    ],
)
def test_very_many_objects_of_one_class(version: str, kind: str, tmp_path: Path) -> None:
    """The finding names the class of the program, how the objects are reached, and other classes with as many objects."""
    count = 20_000
    jvms.compile_java(ROOT / "tests/programs/JavaLoggers.java", tmp_path, "--release", "8", "-Xlint:-options")
    options = ("-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    with Running(jvms.command(version, tmp_path, "JavaLoggers", str(count), kind, options=options), tmp_path) as run:
        one = finding(verdict("--pid", str(run.pid)), "retained-objects")
    if kind == "util":
        assert one["text"].startswith(f"In use, not leaked: {count:,} objects of JavaLoggers$Request retain ")
        assert "java.lang.Class of JavaLoggers static .REQUESTS → java.util.ArrayList.elementData → " in one["cause"]
        assert "java.util.logging.Logger" in one["cause"].partition("Other classes with many objects: ")[2]
        assert one["try"][0].startswith("one logger for each class, not for each object or request")
    else:
        assert "JavaLoggers static .REGISTRY" in one["cause"] or "static variable JavaLoggers.REGISTRY" in one["text"]
        assert "JavaLoggers$Category" in f"{one['text']} {one['cause']}"


THREADS = 200


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        (jvms.SYSTEM, "lock"),
        *(pytest.param(version, kind, marks=pytest.mark.matrix) for version in ("8", "11", *jvms.VERSIONS) for kind in ("lock", "queue")),
        pytest.param(jvms.SYSTEM, "queue", marks=pytest.mark.matrix),
    ],
)
def test_threads_that_wait_for_one_object(version: str, kind: str, tmp_path: Path) -> None:
    """The finding names the function, the variable that refers to the object, and the thread that holds the lock. A thread whose wait has
    just begun may not refer to the object yet."""
    jvms.compile_java(ROOT / "tests/programs/JavaBlocked.java", tmp_path, "--release", "8")
    options = ("-Xmx64m", "-XX:+UseSerialGC", "-Xint")
    with Running(jvms.command(version, tmp_path, "JavaBlocked", str(THREADS), kind, options=options), tmp_path) as run:
        one = finding(verdict("--pid", str(run.pid)), "thread-stacks")
    assert THREADS <= one["evidence"]["same_place"] < one["evidence"]["threads"]
    assert one["evidence"]["place"] == f"JavaBlocked.{'enter' if kind == 'lock' else 'take'}"
    assert one["next"] == ["stacks"]
    lock = one["evidence"]["lock"]
    assert 0.9 * THREADS <= lock["threads"] <= THREADS
    if kind == "lock":
        assert (lock["kind"], lock["variable"], lock["owner_name"]) == ("waiting to lock", "JavaBlocked.LOCK", "holder")
        assert f"to which JavaBlocked.LOCK refers and which thread {lock['owner']} (holder) holds." in one["cause"]
    else:
        assert (lock["kind"], lock["owner"]) == ("parking to wait for", None)
        assert lock["variable"] == "JavaBlocked.QUEUE → java.util.concurrent.LinkedBlockingQueue.notEmpty"
        assert one["cause"].endswith(f"to which {lock['variable']} refers.")


@pytest.mark.parametrize(
    ("version", "kind", "files", "options"),
    [
        (jvms.SYSTEM, "buffer", 1, ()),
        *(pytest.param(version, "buffer", 40, (), marks=pytest.mark.matrix) for version in ("11", "21.0.4")),
        (jvms.SYSTEM, "dropped", 40, ()),
        *(pytest.param(version, "dropped", 1, (), marks=pytest.mark.matrix) for version in ("11", *jvms.VERSIONS)),
        *(pytest.param(jvms.SYSTEM, kind, 40, (), marks=pytest.mark.matrix) for kind in ("file", "service")),
        *(pytest.param("25.0.2", "segment", 1, options, marks=pytest.mark.matrix) for options in ((), ("-XX:+UseZGC",))),
    ],
)
def test_mapped_files(version: str, kind: str, files: int, options: tuple[str, ...], tmp_path: Path) -> None:
    """The finding names the objects that refer to the mappings, and the variable that keeps these objects, or why they are still mapped."""
    count = 40
    jvms.compile_java(ROOT / "tests/programs/JavaMapped.java", tmp_path, "--release", "11")
    (tmp_path / "data").mkdir()
    words = [str(tmp_path / "data"), str(count), str(files), kind]
    with Running(jvms.command(version, tmp_path, "JavaMapped", *words, options=("-Xmx64m", *options)), tmp_path) as run:
        one = finding(verdict("--pid", str(run.pid)), "mapped-file")
        if kind == "dropped":
            (referrers, (remedy,)) = one["evidence"]["referrers"], one["try"]
            assert (referrers["type"], referrers["objects"]) == ("java.nio.DirectByteBuffer", 0) and referrers["garbage_objects"] >= count
            assert remedy.startswith("jcmd PID GC.run: the JVM unmaps a file only when it collects these objects")
            return
        if kind in ("file", "service"):  # close() of the one service need not unmap the files
            assert "JavaMapped$Service.mapped → " in one["cause"]
            remedies = ["close() of each JavaMapped$Service that is not needed any more, as in try-with-resources"]
            if kind == "file":
                assert one["try"] == remedies
            else:
                assert [remedy.partition(":")[0] for remedy in one["try"]] == [
                    "drop the references to buffers that are not needed any more"
                ]
            return
        (word,) = (word for word in one["next"] if word.startswith("path "))
        path = json.loads(findleaks(*word.split(), "--json", "--pid", str(run.pid)))
    name = "java.nio.DirectByteBuffer" if kind == "buffer" else "jdk.internal.foreign.MappedMemorySegmentImpl"
    assert (one["evidence"]["referrers"]["type"], path["target"]["object"]["type"]) == (name, name)
    assert one["evidence"]["referrers"]["objects"] >= count and one["bytes"] >= count << 20
    assert (
        f"JavaMapped static .MAPPINGS → java.util.HashMap.table → java.util.HashMap$Node[] → java.util.HashMap$Node.value → {name}."
        in one["cause"]
    )


def find_finalizers(folder: Path, version: str, *words: str) -> Mapping[str, Any]:
    """Return the finding about the objects of JavaFinalizers."""
    jvms.compile_java(ROOT / "tests/programs/JavaFinalizers.java", folder, "--release", "8", "-Xlint:-options")
    options = ("-Xmx128m", "-XX:+UseSerialGC")
    with Running(jvms.command(version, folder, "JavaFinalizers", *words, options=options), folder) as run:
        return finding(verdict("--pid", str(run.pid)), "retained-objects")


def run_shared(folder: Path, version: str, kind: str) -> Running:
    jvms.compile_java(ROOT / "tests/programs/JavaShared.java", folder, "--release", "8", "-Xlint:-options")
    options = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    return Running(jvms.command(version, folder, "JavaShared", kind, options=options), folder)


@pytest.mark.parametrize("version", [jvms.SYSTEM, *(pytest.param(one, marks=pytest.mark.matrix) for one in ("8", "11", *jvms.VERSIONS))])
def test_objects_that_two_variables_retain_together(version: str, tmp_path: Path) -> None:
    """No variable alone retains the documents. The finding names their class, and a path to one of them."""
    with run_shared(tmp_path, version, "documents") as run:
        one = finding(verdict("--pid", str(run.pid)), "retained-objects")
    assert one["text"].startswith("In use, not leaked: 40 objects of JavaShared$Document retain 3")
    assert "java.lang.Class of JavaShared$Library static .BY_NAME → " in one["cause"] or "JavaShared$Session static ." in one["cause"]


@pytest.mark.matrix
def test_executor_with_a_finalizer(tmp_path: Path) -> None:
    """In JDK 8, a ThreadPoolExecutor has a finalizer. Its threads use it, so it does not wait for its finalizer."""
    with run_shared(tmp_path, "8", "executor") as run:
        one = finding(verdict("--pid", str(run.pid)), "retained-objects")
    assert one["text"].startswith("In use, not leaked: an object of java.util.concurrent.ThreadPoolExecutor retains 2")
    assert one["cause"].startswith("The object has a finalizer. A thread reaches it by ")
    assert [remedy.partition(" for ")[0] for remedy in one["try"]] == ["a bounded queue"]


@pytest.mark.matrix
@pytest.mark.parametrize("version", ["8", jvms.SYSTEM, "25.0.2"])
def test_array_in_two_variables(version: str, tmp_path: Path) -> None:
    """Each of the two variables keeps the array, so neither of them alone retains it."""
    with run_shared(tmp_path, version, "array") as run:
        one = finding(verdict("--pid", str(run.pid)), "retained-objects")
    first, _, second = one["evidence"]["root"].removeprefix("the object in static variables ").partition(" and ")
    assert {first, second} == {"JavaShared$Library.all", "JavaShared$Session.all"}
    assert one["text"].startswith(f"In use, not leaked: {one['evidence']['root']} retains 38 MiB in 81 objects of JVM.")


@pytest.mark.matrix
@pytest.mark.parametrize("version", ["8", "25.0.2"])
def test_scheduled_tasks(version: str, tmp_path: Path) -> None:
    """Most objects are of the JDK. The finding names the class of the tasks."""
    with run_shared(tmp_path, version, "tasks") as run:
        one = finding(verdict("--pid", str(run.pid)), "retained-objects")
    assert ".callable → java.util.concurrent.Executors$RunnableAdapter.task → JavaShared$Task" in one["cause"]
    assert [remedy.partition(" of each")[0] for remedy in one["try"]] == ["cancel()"]


@pytest.mark.matrix
def test_interned_strings_of_jdk_8(tmp_path: Path) -> None:
    """The table of interned strings keeps no string alive. Only interior pointers refer to the blocks with its entries."""
    with run_shared(tmp_path, "8", "strings") as run:
        where = ("--json", "--pid", str(run.pid))
        (jvm,) = json.loads(findleaks("runtime", "--only", "jvm", "--limit", "0", *where))["runtimes"]
        totals = json.loads(findleaks("find", *where))["totals"]
    (strings,) = (one for one in jvm["types"] if one["name"] == "java.lang.String")
    assert strings["objects"] < 20_000 and strings["own"]["garbage_objects"] >= 200_000
    assert totals["possible"]["bytes"] < 1 << 20


FINALIZERS = [jvms.SYSTEM, *(pytest.param(version, marks=pytest.mark.matrix) for version in ("8", "11", *jvms.VERSIONS))]


@pytest.mark.parametrize("version", FINALIZERS)
def test_objects_that_wait_for_their_finalizer(version: str, tmp_path: Path) -> None:
    """The finding names the queue, the number of objects in it, and the class of the objects. The finalizer of one object waits."""
    one = find_finalizers(tmp_path, version)
    assert one["text"].startswith("In use, not leaked: objects that wait for their finalizer retain 2")
    (count,) = re.findall(r"^([\d,]+) objects are in the queue of the thread Finalizer, which calls", one["cause"])
    assert int(count.replace(",", "")) >= 19_990
    assert "java.lang.ref.Finalizer.referent → JavaFinalizers$Page.content" in one["cause"]
    assert one["try"][0].startswith("find out what the thread Finalizer waits for") and "stacks" in one["next"]


@pytest.mark.parametrize("version", FINALIZERS)
def test_objects_with_a_finalizer_that_a_thread_uses(version: str, tmp_path: Path) -> None:
    """Only a local variable and the JVM's list of objects with a finalizer refer to the objects. They do not wait for their finalizer."""
    one = find_finalizers(tmp_path, version, "used")
    assert one["text"].startswith("In use, not leaked: objects with a finalizer retain 2")
    assert one["cause"].startswith("Stacks of threads, or native memory, reach 8 of 8 examined objects with a finalizer, one of them by ")
    assert "java.util.ArrayList.elementData" in one["cause"] and not one["try"]


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("kind", "owner", "remedy", "least"),
    [
        ("segments", "jdk.internal.foreign.SegmentFactories$1", "close() of each java.lang.foreign.Arena", 1.0),
        ("arenas", "jdk.internal.foreign.SegmentFactories$1", "close() of each java.lang.foreign.Arena", 1.0),
        (
            "global",
            "jdk.internal.foreign.NativeMemorySegmentImpl",
            "allocate memory in a java.lang.foreign.Arena that the program closes",
            0.9,
        ),
    ],
)
def test_memory_of_arenas(kind: str, owner: str, remedy: str, least: float, tmp_path: Path) -> None:
    """The memory of an arena is attributed to the object that frees it. Memory of the global arena, which is never freed, is attributed
    to segments. Segments do not retain all of it alone: stale words in blocks of the JVM's own arenas refer to up to 5 % of these
    blocks."""
    count = 500
    jvms.compile_java(ROOT / "tests/programs/JavaArenas.java", tmp_path, "--release", "11")
    with Running(jvms.command("25.0.2", tmp_path, "JavaArenas", kind, str(count), options=("-Xmx64m",)), tmp_path / "run") as run:
        found = verdict("--pid", str(run.pid))
    held = finding(found, "held-by-managed-objects")
    assert found["findings"][0] == held
    (top, *_) = held["evidence"]["types"]
    assert top["name"] == owner
    assert least * count <= top["native_blocks"] <= count + 2
    assert "java.lang.Class of JavaArenas static .KEPT → java.util.ArrayList.elementData → java.lang.Object[]" in held["cause"]
    assert held["try"][0].startswith(remedy)


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("plugin", "holder"),
    [
        ("PluginLocal", "(thread-local variable PluginLocal.CONTEXT)"),
        ("PluginDriver", "java.sql.DriverManager static .registeredDrivers → java.util.concurrent.CopyOnWriteArrayList.array"),
        ("PluginHook", "java.lang.ApplicationShutdownHooks static .hooks → java.util.IdentityHashMap.table"),
        ("PluginThread", '→ JavaPlugins$Loader (Java thread "plugin")'),
        ("PluginCached", "java.lang.Object[] → PluginCached →"),
    ],
)
def test_class_loaders_of_plugins(plugin: str, holder: str, tmp_path: Path) -> None:
    """The finding names what keeps the static variables of the plugin's class alive."""
    jvms.compile_java(ROOT / "tests/programs/JavaPlugins.java", tmp_path, "--release", "11")
    command = jvms.command(jvms.SYSTEM, tmp_path, "JavaPlugins", plugin, "120", options=("-Xmx256m",))
    with Running(command, tmp_path / "run") as run:
        found = verdict("--pid", str(run.pid))
    held = finding(found, "retained-objects")
    assert found["findings"][0] == held
    assert holder in f"{held['text']} {held['cause']}"
    # No thread retains most: each has one class loader. The path ends there.
    assert plugin == "PluginThread" or f"java.lang.Class of {plugin} static .CACHE → byte[]" in held["cause"]
    assert "SoftReference" not in held["cause"]


@pytest.mark.parametrize("version", [jvms.SYSTEM, *(pytest.param(one, marks=pytest.mark.matrix) for one in ("11", *jvms.VERSIONS))])
@pytest.mark.parametrize("words", [(), ("cleaner",)], ids=["leaked", "cleaner"])
def test_garbage_that_owns_native_memory(version: str, words: tuple[str, ...], tmp_path: Path) -> None:
    """A collection frees the native blocks of these objects only if the objects have a Cleaner."""
    count, each = 2000, 20_000
    library = jvms.compile_native("dropped_codecs.c", tmp_path)
    jvms.compile_java(truth.PROGRAMS / "DroppedCodecs.java", tmp_path, "--release", "11")
    command = jvms.command(version, tmp_path, "DroppedCodecs", str(library), str(count), *words, options=FLAGS)
    with Running(command, tmp_path / "run") as run:
        where = ("--pid", str(run.pid)) if version != jvms.SYSTEM else (str(run.kernel_core()),)
        one = finding(verdict(*where), "held-by-managed-objects")
        text = " ".join(findleaks("runtime", "--only", "jvm", *where).split())
    (top, *_) = one["evidence"]["types"]
    assert top["name"] == "DroppedCodecs$State" and 0.98 * count * each < top["native_bytes"] < 1.02 * count * each
    assert re.search(
        r"2,000 objects of DroppedCodecs\$State retain 3[78] MiB; 1,9[78]\d of these are garbage that was not collected", one["cause"]
    )
    is_freed = "a collection (jcmd PID GC.run) frees this memory" in one["cause"]
    assert is_freed == bool(words)
    assert one["text"].startswith("Garbage, not collected yet: " if words else "Probably leaked: garbage of JVM retains 3")
    assert any("these objects have no Cleaner" in remedy for remedy in one["try"]) != is_freed
    assert re.search(r"live objects of [\d.]+ [KM]iB, which retain [\d.]+ KiB of native memory; garbage retains 3[78] MiB ", text)


@pytest.mark.matrix
@pytest.mark.parametrize("kind", ["ofConfined", "ofShared", "ofAuto"])
def test_memory_of_dropped_arenas(kind: str, tmp_path: Path) -> None:
    """The collector frees the memory of automatic arenas only. Stale words may refer to a few of the blocks."""
    jvms.compile_java(truth.PROGRAMS / "JavaArenas.java", tmp_path, "--release", "17")
    with Running(jvms.command("25.0.2", tmp_path, "JavaArenas", kind, "300", options=("-Xmx64m", "-Xbatch")), tmp_path / "run") as run:
        one = finding(verdict("--pid", str(run.pid)), "held-by-managed-objects")
    assert re.match(r"300 objects of \S+ retain 2[6-9] MiB; (300|299|298) of these are garbage that was not collected yet", one["cause"])
    is_freed = "a collection (jcmd PID GC.run) frees this memory" in one["cause"]
    assert is_freed == (kind == "ofAuto") and one["text"].startswith("Garbage, not" if is_freed else "Probably leaked")
    assert one["try"][0].startswith("close() of each java.lang.foreign.Arena")
