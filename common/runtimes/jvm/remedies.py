"""Find out how to free native memory that Java objects own, and objects that collections of the JDK
retain.

Sources: the documentation of java.util.zip.Inflater, java.lang.AutoCloseable, java.nio,
java.lang.Runtime, java.lang.foreign.Arena, java.lang.ref.Cleaner, java.net.http.HttpClient,
java.sql.DriverManager, java.util.logging.Logger, java.util.Timer, java.util.WeakHashMap and
java.util.concurrent; JDK-8147468 (jdk.nio.maxCachedBufferSize); the documentation of Netty 4.1
(ReferenceCounted, ResourceLeakDetector); the JNI specification (global references)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from findleaks.formatting import shorten
from findleaks.runtimes.jvm.holders import BUFFER, SEGMENT
from findleaks.runtimes.jvm.java_classes import ClassReader
from findleaks.runtimes.jvm.tables import Tables

_CLOSEABLE = "java.lang.AutoCloseable"
_CACHE = "sun.nio.ch.Util$BufferCache"
_ARENA = "jdk.internal.foreign."
_AUTOMATIC = f"{_ARENA}ImplicitSession"  # of Arena.ofAuto()
_OF_AUTOMATIC_ARENAS = (
    "Arena.ofConfined() or ofShared() and close(): memory of Arena.ofAuto() lives as long as the Java objects that use it"
)
_OF_ARENAS = "close() of each java.lang.foreign.Arena that is not needed any more, as in try-with-resources"
_OF_UNUSED_MAPPINGS = (
    "jcmd PID GC.run: the JVM unmaps a file only when it collects these objects, and it collects only when the Java heap fills up"
)
_OF_USED_MAPPINGS = (
    "drop the references to buffers that are not needed any more: the JVM unmaps a file when it collects them; "
    "since JDK 22, a file that is mapped in a java.lang.foreign.Arena is unmapped by close()"
)
_OF_NUMBERS = (
    "free these blocks with the function of the class or library that allocated them, such as Unsafe.freeMemory(): "
    "the collector frees only the numbers"
)
# Classes whose objects contain addresses as numbers
_ADDRESSES = ("java.lang.Long", "long[]", "java.util.concurrent.atomic.AtomicLong")
_NEAR = 4  # objects on the end of a path, without the last one
_MOST_OWNED = 8  # objects with native memory for which one close() may be needed
_NETTY = "io.netty.buffer."
_STREAM = "ZStreamRef"  # the end of the names of the classes that own the memory of zlib
_LWJGL = "LWJGL: MemoryUtil.memFree()"
_LOCAL = "thread-local variable"
_GLOBAL = "handle of the JVM: JNI Global"
_OF_LOCALS = "ThreadLocal.remove() at the end of each task: the threads of a pool keep the value"
_OF_INHERITED = "ThreadLocal.remove() before threads are created, and in each thread: a thread inherits the value"
_OF_TIMERS = "Timer.cancel() for each java.util.Timer that is not needed any more: its thread keeps its tasks"
_OF_EXECUTORS = "shutdown() of each java.util.concurrent.ExecutorService that is not needed any more: its threads wait for tasks"
_OF_CLEANERS = "find out what the thread of the Cleaner waits for: it runs one cleaning action after the other"
_OF_HTTP_CLIENTS = "one java.net.http.HttpClient for all requests, or close() of each one that is not needed any more (since JDK 21)"
OF_FINALIZERS = "find out what the thread Finalizer waits for, and replace finalize() by close()"
OF_UNUSED_FINALIZERS = "replace finalize() by close(): two collections are needed to free an object with a finalizer"
OF_CLEANERS = "jdk.internal.ref.CleanerImpl"  # in paths to what a Cleaner has not released yet
OWN_ACTIONS = (
    "actions of the Cleaner that do not refer to the object that they clean, such as a static nested class: else it never becomes garbage"
)
_OF_IDLE = {
    "java.util.concurrent.ThreadPoolExecutor.getTask": _OF_EXECUTORS,
    "java.util.concurrent.ForkJoinPool.awaitWork": _OF_EXECUTORS,
    "java.util.TimerThread.mainLoop": _OF_TIMERS,
    "jdk.internal.net.http.HttpClientImpl$SelectorManager.run": _OF_HTTP_CLIENTS,
}
"""A function in which a thread waits for tasks -> how to end the thread"""
_MOST_INTERFACES = 1 << 12
_COPIES = re.compile(r"static variable \S+ of [\d,]+ classes ")
_OF_COPIES = "end what keeps the class loaders of these classes: each class loader has a copy of the variable"

_SOFT, _REFERENT = "java.lang.ref.SoftReference", re.compile(r"([^\s→]+)\.referent\b")  # in a path
_OF_SOFT = (
    "a limit on the number of objects with soft references, or a smaller "
    "-XX:SoftRefLRUPolicyMSPerMB: the JVM keeps these objects until the heap is nearly full"
)

_OF_SCHEDULED = (
    "cancel() of each task that is not needed any more, with setRemoveOnCancelPolicy(true) of the ScheduledThreadPoolExecutor: "
    "by default, a cancelled task stays in the queue until its time has come"
)
_OF_ZIP_FILES = "close() of each java.util.zip.ZipFile that is not needed any more"
_QUEUE = "java.lang.ref.ReferenceQueue.head"  # in a path; those of the JDK have other remedies, too
_OF_QUEUES = "poll() or remove() of the java.lang.ref.ReferenceQueue: it keeps the references that the collector has added until then"

# A part of the name of a root, or of a path that begins there -> what frees the retained objects
_OF_RETAINERS = {
    "java.lang.ApplicationShutdownHooks.hooks": "Runtime.removeShutdownHook() for each hook that is not needed any more",
    "java.sql.DriverManager.registeredDrivers": "DriverManager.deregisterDriver() when the application that registered the driver ends",
    "java.util.logging.LogManager": "Logger.removeHandler() when the application that added the handler ends",
    "java.util.ResourceBundle.cacheList": "ResourceBundle.clearCache(CLASSLOADER) when the application of this class loader ends",
    "java.lang.Thread.defaultUncaughtExceptionHandler": "Thread.setDefaultUncaughtExceptionHandler(null) when the application ends",
    "NotificationEmitterSupport$ListenerInfo": "NotificationEmitter.removeNotificationListener() when the application ends",
    "sun.security.jca.Providers": "Security.removeProvider() when the application that added the provider ends",
    "java.io.DeleteOnExitHook.files": "File.delete() instead of File.deleteOnExit(), which keeps each path until the JVM ends",
    "java.lang.ref.Finalizer.": OF_FINALIZERS,
    OF_CLEANERS: _OF_CLEANERS,
    _GLOBAL: "DeleteGlobalRef() by the native code that called NewGlobalRef(), when the object is not needed any more",
    "java.util.zip.ZipFile$Source": _OF_ZIP_FILES,
    "libzip.so, data+": _OF_ZIP_FILES,  # JDK 8 keeps the entries of open files in native memory
    "zfiles (libzip.so, data)": _OF_ZIP_FILES,
    # The tables of interned strings and of symbols both have a variable of this name.
    "_local_table (libjvm.so, data)": (
        "jcmd PID VM.stringtable and VM.symboltable, which print how many strings String.intern() added, "
        "and how many names of classes, methods and fields there are"
    ),
    "ForkJoinTask[]": "a limit on the number of tasks that are submitted to the ForkJoinPool before others are done",
    ".inheritableThreadLocals": _OF_INHERITED,
    _LOCAL: _OF_LOCALS,
    "java.util.TimerT": _OF_TIMERS,
    "task queue of 1 timer": _OF_TIMERS,
    "task queues of ": _OF_TIMERS,
    "java.util.TaskQueue.queue": "Timer.purge() after TimerTask.cancel(): a cancelled task stays in the queue until its time has come",
    "java.util.concurrent.ScheduledThreadPoolExecutor.workQueue": _OF_SCHEDULED,
    "ScheduledThreadPoolExecutor$DelayedWorkQueue": _OF_SCHEDULED,
    "java.util.concurrent.ThreadPoolExecutor.workQueue": "a bounded queue for the ThreadPoolExecutor, with a RejectedExecutionHandler",
    ".threadLocals →": _OF_LOCALS,
    "java.io.ObjectOutputStream$HandleTable": "ObjectOutputStream.reset() after each message: the stream keeps all objects that it wrote",
    "java.io.ObjectInputStream$HandleTable": "ObjectOutputStream.reset() by the sender: the reader's stream keeps all objects that it read",
    "java.util.concurrent.CompletableFuture.stack": (
        "complete each java.util.concurrent.CompletableFuture, for example with orTimeout(): until then, it keeps its dependent stages"
    ),
    ".suppressedExceptions →": "a new exception for each error: an exception that is kept also keeps what addSuppressed() adds to it",
    "java.beans.PropertyChangeSupport": "removePropertyChangeListener() for each listener that is not needed any more",
    "com.google.common.cache.LocalCache": "CacheBuilder.maximumSize() or maximumWeight() for the cache, or smaller values",
    "com.github.benmanes.caffeine.cache.": "Caffeine.maximumSize() or maximumWeight() for the cache, or smaller values",
    "com.sun.jmx.interceptor.": "MBeanServer.unregisterMBean() when the application that registered the MBean ends",
    ".contextClassLoader →": "end the threads that an application started when the application ends: each keeps its context class loader",
    "java.util.WeakHashMap$Entry.value": "values of a WeakHashMap that do not refer to their keys; otherwise it never removes the entries",
}


def find_remedies(
    tables: Tables,
    reader: ClassReader,
    klasses: Mapping[str, int],
    counts: Mapping[str, int],
    name: str,
    path: str,
    has_cleaner: bool = True,
) -> Iterator[str]:
    """Yield what frees the native memory of objects of the class `name`. `klasses`: the Klass of
    each class of objects. `counts`: the number of live objects of each class. `path`: the types on
    a path from a root to one of its live objects, or "". `has_cleaner`: False for a direct buffer
    that refers to no other object, so that the collector does not free its memory."""
    outer, _, number = name.rpartition("$")
    # A program cannot name an anonymous class.
    if number.isdigit() and outer in klasses and outer in path:
        name = outer
    if not name.endswith(_STREAM):  # all versions have end(), but only recent ones close()
        name = _find_closeable_owner(tables, reader, klasses, counts, name, path)
    found = list(_find_owner_remedies(tables, reader, klasses, name, path, has_cleaner))
    if not found or (name == BUFFER and not any(one in path for one in (_CACHE, _NETTY))):
        yield from _find_near_remedies(tables, reader, klasses, counts, name, path)
    yield from found
    if name in _ADDRESSES:
        yield _OF_NUMBERS
    if _LOCAL in path and _CACHE not in path:
        yield _OF_LOCALS
    if OF_CLEANERS in path:
        yield _OF_CLEANERS


def _find_closeable_owner(
    tables: Tables, reader: ClassReader, klasses: Mapping[str, int], counts: Mapping[str, int], name: str, path: str
) -> str:
    """Return the outermost class on the end of a path whose close() also closes the object of the
    class `name`: org.rocksdb.RocksDB for the column family handle that each RocksDB has. Each of
    these classes implements AutoCloseable, is in the same package, and has as many objects."""
    package, links = name.rpartition(".")[0], path.partition(" (")[0].split(" → ")
    for link in links[-2::-1]:
        owner = link.rpartition(".")[0]
        if owner.rpartition(".")[0] != package or not package or counts.get(owner) != counts.get(name):
            break
        if not is_closeable(tables, reader, klasses.get(owner, 0)):
            break
        name = owner
    return name


def _find_owner_remedies(
    tables: Tables, reader: ClassReader, klasses: Mapping[str, int], name: str, path: str, has_cleaner: bool
) -> Iterator[str]:
    """Yield what frees the memory, whatever refers to the objects."""
    if name.endswith(_STREAM):
        yield "end() of java.util.zip.Inflater and Deflater, or close() of the stream that has one, as soon as it is not needed any more"
    elif name == BUFFER and _CACHE in path:
        yield "-Djdk.nio.maxCachedBufferSize=BYTES limits the buffers that each thread caches for channels"
    elif name == BUFFER and _NETTY in path:
        yield f"release() of each {_NETTY}ByteBuf that is not needed any more"
        yield "-Dio.netty.leakDetection.level=paranoid, with which Netty logs where it allocated buffers that were not released"
    elif name == BUFFER and not has_cleaner:
        example = f" ({_LWJGL})" if any(one.startswith("org.lwjgl.") for one in klasses) else ""
        yield f"free these buffers as their library documents{example}: the collector frees only the objects"
    elif name == BUFFER:
        yield "-XX:MaxDirectMemorySize=BYTES limits direct buffers; the collector frees a buffer that nothing refers to"
    elif name == SEGMENT:
        yield "allocate memory in a java.lang.foreign.Arena that the program closes: nothing frees memory of Arena.global() or of malloc"
    elif name.startswith(_ARENA) and _AUTOMATIC in path:
        yield _OF_AUTOMATIC_ARENAS
    elif name.startswith(_ARENA):
        yield _OF_ARENAS
    elif is_closeable(tables, reader, klasses.get(name, 0)):
        yield f"close() of each {shorten(name)} that is not needed any more, as in try-with-resources"


def _find_near_remedies(
    tables: Tables, reader: ClassReader, klasses: Mapping[str, int], counts: Mapping[str, int], name: str, path: str
) -> Iterator[str]:
    """Yield the remedy for an object near the end of the path that has a close() method, and that
    may own the objects of the class `name`: org.lmdbjava.Env for a pointer of jnr.ffi, or
    org.lmdbjava.Cursor for the four buffers that each cursor has."""
    owners = [link.rpartition(".")[0] for link in path.partition(" (")[0].split(" → ")[-2::-1]]
    many = (one for one in owners[:_NEAR] if counts.get(one, 0) * _MOST_OWNED >= counts.get(name, 0) > 0)
    owner = next((one for one in many if is_closeable(tables, reader, klasses.get(one, 0))), "")
    if owner:
        yield f"close() of each {shorten(owner)} that is not needed any more, as in try-with-resources"


def find_mapping_remedies(tables: Tables, reader: ClassReader, klasses: Mapping[str, int], name: str, path: Sequence[str]) -> Iterator[str]:
    """Yield what unmaps the files to which objects of the class `name` refer. `path`: the classes
    on a path to one of them, () if they are garbage. The last object on the path that has a close()
    method may be a file of a library, such as an IndexInput of Lucene."""
    if not path:
        yield _OF_UNUSED_MAPPINGS
    elif name.startswith(_ARENA):
        yield _OF_ARENAS
    else:
        owner = next((one for one in path[-2::-1][:_NEAR] if is_closeable(tables, reader, klasses.get(one, 0))), "")
        if owner:
            yield f"close() of each {shorten(owner)} that is not needed any more, as in try-with-resources"
        elif name.startswith(BUFFER):
            yield _OF_USED_MAPPINGS


def find_retainer_remedies(text: str, list_supers: Callable[[str], Sequence[str]]) -> Iterator[str]:
    """Yield what frees objects that a root retains. `text`: the name of the root, and the path from
    there to the objects. `list_supers`: returns the superclasses of a class of objects, by name."""
    found = dict.fromkeys(remedy for part, remedy in _OF_RETAINERS.items() if part in text)
    if any(_SOFT in (name, *list_supers(name)) for name in _REFERENT.findall(text)):
        found[_OF_SOFT] = None
    if _OF_INHERITED in found:
        found.pop(_OF_LOCALS, None)
    if _QUEUE in text and not found:
        found[_OF_QUEUES] = None
    yield from found
    if _COPIES.match(text):
        yield _OF_COPIES


def find_idle_remedies(functions: Sequence[str]) -> list[str]:
    """Return how to end threads that wait for tasks. `functions`: of their frames, each with the
    class."""
    return list(dict.fromkeys(remedy for name, remedy in _OF_IDLE.items() if any(name in one for one in functions)))


def is_closeable(tables: Tables, reader: ClassReader, klass: int) -> bool:
    """Whether a class implements AutoCloseable."""
    return _CLOSEABLE in _interfaces(tables, reader, klass)


def _interfaces(tables: Tables, reader: ClassReader, klass: int) -> set[str]:
    """Return the names of the interfaces of a class and of its superclasses."""
    table = tables.word("InstanceKlass", "_transitive_interfaces", klass) or 0
    count, data = tables.int32("Array<Klass*>", "_length", table) or 0, tables.place("Array<Klass*>", "_data", table)
    words = tables.memory.words(data, count) if data and 0 < count <= _MOST_INTERFACES else None
    return {reader.name(one) for one in words or ()}
