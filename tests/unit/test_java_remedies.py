"""Test which remedies are suggested for what a root of the Java heap retains."""

from __future__ import annotations

import pytest

from findleaks.runtimes.jvm.remedies import find_retainer_remedies


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
        ('stack of Java thread "task queue" App.pages', []),
        ('stack of Java thread "all classes loader" App.pages', []),
    ],
)
def test_remedies_of_retainers(text: str, remedies: list[str]) -> None:
    """The name of a thread leads to no remedy. App$Page is a soft reference, and App$Soft is not."""
    found = list(find_retainer_remedies(text, lambda name: ["java.lang.ref.SoftReference"] if name == "App$Page" else ["java.lang.Object"]))
    assert len(found) == len(remedies)
    assert all(one.startswith(remedy) for one, remedy in zip(found, remedies))
