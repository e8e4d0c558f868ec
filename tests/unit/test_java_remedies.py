"""Test which remedies are suggested for what a root of the Java heap retains."""

from __future__ import annotations

from typing import Any

import pytest

from findleaks.runtimes.jvm import remedies as java_remedies
from findleaks.runtimes.jvm.holders import BUFFER
from findleaks.runtimes.jvm.remedies import find_remedies, find_retainer_remedies


@pytest.mark.parametrize(
    ("text", "remedies"),
    [
        ("static variable App.CACHE of 1,240 classes java.lang.Class static .CACHE", ["end what keeps the class loaders"]),
        ("task queues of 200 timers java.util.TimerThread.queue", ["Timer.cancel() for each java.util.Timer"]),
        ("static variable A.b java.util.TimerTask.c java.util.TaskQueue.queue", ["Timer.cancel()", "Timer.purge()"]),
        ("handle of the JVM: JNI Global: App$Callback.payload → byte[]", ["DeleteGlobalRef() by the native code"]),
        (
            "InnocuousThread.target → jdk.internal.ref.CleanerImpl.phantomCleanableList",
            ["find out what the thread of the Cleaner"],
        ),
        ("static variable App.CACHE com.google.common.cache.LocalCache$LocalManualCache.localCache → App$Tile", ["CacheBuilder.maximum"]),
        ("static variable App.CACHE com.github.benmanes.caffeine.cache.SSMS.data → App$Tile", ["Caffeine.maximumSize()"]),
        ("static variable App.map → App$Page.referent → byte[]", ["a limit on the number of objects with soft references"]),
        (
            "static variable A.map → java.lang.ref.SoftReference.referent → byte[]",
            ["a limit on the number of objects with soft references"],
        ),
        ("static variable App.map → App$Soft.referent → byte[]", []),
        ("static variable A.QUEUE java.lang.Class of A static .QUEUE → java.lang.ref.ReferenceQueue.head → A$Ref", ["poll() or remove()"]),
        ("java.lang.ref.Finalizer.next → java.lang.ref.ReferenceQueue.head", ["find out what the thread Finalizer"]),
        (
            "A static .LOG → java.io.ObjectOutputStream.handles → java.io.ObjectOutputStream$HandleTable.objs",
            ["ObjectOutputStream.reset()"],
        ),
        ("A static .READY → java.util.concurrent.CompletableFuture.stack → A$Stage", ["complete each java.util.concurrent.Completable"]),
        ("A static .CLOSED → java.io.IOException.suppressedExceptions → java.util.ArrayList.elementData", ["a new exception for each"]),
        ("A static .CRON → java.util.concurrent.ScheduledThreadPoolExecutor.workQueue → … → A$Task", ["cancel() of each task"]),
        ('stack of Java thread "task queue" App.pages', []),
        ('stack of Java thread "all classes loader" App.pages', []),
    ],
)
def test_remedies_of_retainers(text: str, remedies: list[str]) -> None:
    """The name of a thread leads to no remedy. App$Page is a soft reference, and App$Soft is not."""
    found = list(find_retainer_remedies(text, lambda name: ["java.lang.ref.SoftReference"] if name == "App$Page" else ["java.lang.Object"]))
    assert len(found) == len(remedies)
    assert all(one.startswith(remedy) for one, remedy in zip(found, remedies))


POINTER, ENV, CURSOR = "jnr.ffi.DirectMemoryIO", "org.lmdbjava.Env", "org.lmdbjava.Cursor"
CLOSEABLE = (ENV, CURSOR)
FREE = "free these buffers as their library documents"


@pytest.mark.parametrize(
    ("name", "count", "path", "first"),
    [
        (POINTER, 20, f"java.lang.Object[] → {ENV}.ptr → {POINTER}", f"close() of each {ENV} that is not needed any more"),
        (BUFFER, 80, f"java.lang.Object[] → {CURSOR}.kv → org.lmdbjava.KeyVal.k → {BUFFER}", f"close() of each {CURSOR} that"),
        # One object with close() does not own thousands of buffers, such as those of a pool.
        (BUFFER, 4000, f"java.lang.Object[] → {CURSOR}.kv → org.lmdbjava.KeyVal.k → {BUFFER}", "-XX:MaxDirectMemorySize=BYTES"),
        (POINTER, 20, f"java.lang.Object[] → App.ptr → {POINTER}", ""),
        ("java.lang.Long", 20, "java.lang.Object[] → App.address → java.lang.Long", "free these blocks with the function"),
    ],
)
def test_object_that_owns_native_memory_of_another(name: str, count: int, path: str, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    klasses = {one: number for number, one in enumerate((POINTER, BUFFER, "App", "java.lang.Long", *CLOSEABLE), 1)}
    monkeypatch.setattr(java_remedies, "is_closeable", lambda tables, reader, klass: klass in [klasses[one] for one in CLOSEABLE])
    nothing: Any = None
    found = list(find_remedies(nothing, nothing, klasses, {**dict.fromkeys(klasses, 20), name: count}, name, path))
    assert (found[0] if found else "").startswith(first) and bool(found) == bool(first)


@pytest.mark.parametrize(
    ("path", "classes", "remedies"),
    [
        (f"java.lang.Object[] → {ENV}.ptr → {BUFFER}", (), (f"close() of each {ENV} that", f"{FREE}: ")),
        (f"java.lang.Object[] → {BUFFER}", ("org.lwjgl.system.SharedLibrary",), (f"{FREE} (LWJGL: ",)),
    ],
)
def test_direct_buffers_without_a_cleaner(
    path: str, classes: tuple[str, ...], remedies: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A library in C made them. LWJGL is named only if the process uses it."""
    klasses = {one: number for number, one in enumerate((BUFFER, ENV, *classes), 1)}
    monkeypatch.setattr(java_remedies, "is_closeable", lambda tables, reader, klass: klass == klasses[ENV])
    nothing: Any = None
    found = list(find_remedies(nothing, nothing, klasses, dict.fromkeys(klasses, 20), BUFFER, path, has_cleaner=False))
    assert len(found) == len(remedies) and all(map(str.startswith, found, remedies))
