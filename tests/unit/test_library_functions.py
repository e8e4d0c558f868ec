"""Find the functions that belong to a managed language's library, and those that this library calls to wait."""

from __future__ import annotations

import pytest

from findleaks.runtimes.cpython.frame_reader import FrameReader as PythonFrames
from findleaks.runtimes.jvm.frames.reader import JavaFrames
from findleaks.runtimes.ruby.frame_reader import FrameReader as RubyFrames
from findleaks.runtimes.v8.frames.reader import JavaScriptFrames
from findleaks.unwind.managed_frames import ManagedFrames
from findleaks.unwind.stacks import NamedFrame

FRAMES = [
    (PythonFrames, "wait", "/usr/lib/python3.11/threading.py", True),
    (PythonFrames, "wait", "/usr/local/lib/python3.13t/threading.py", True),
    (PythonFrames, "run", "/usr/lib/python3.11/site-packages/app.py", False),
    (PythonFrames, "exec_module", "<frozen importlib._bootstrap>", True),
    (PythonFrames, "acquire", "", True),
    (RubyFrames, "pop", "/usr/lib/ruby/3.1.0/monitor.rb", True),
    (RubyFrames, "call", "/usr/lib/ruby/gems/3.1.0/gems/rack-2.2.4/lib/rack.rb", False),
    (RubyFrames, "call", "/srv/app.rb", False),
    (JavaScriptFrames, "emit", "node:events", True),
    (JavaScriptFrames, "serve", "/srv/node_modules/app/index.js", False),
    (JavaFrames, "java.util.concurrent.FutureTask.get", "FutureTask.java", True),
    (JavaFrames, "app.Worker.run", "Worker.java", False),
    (JavaFrames, "app.Worker.run", "", False),
]


@pytest.mark.parametrize(("reader", "function", "file", "is_of_library"), FRAMES)
def test_functions_of_libraries(reader: type[ManagedFrames], function: str, file: str, is_of_library: bool) -> None:
    assert reader.is_of_library(reader.__new__(reader), NamedFrame(0, function, 0, "", file, kind=reader.kind)) == is_of_library


def test_functions_that_wait() -> None:
    found = [
        JavaFrames.is_of_wait(JavaFrames.__new__(JavaFrames), NamedFrame(0, function, 0, ""))
        for function in ("java.util.concurrent.locks.LockSupport.park", "java.util.concurrent.FutureTask.get", "app.Worker.run")
    ]
    assert found == [True, False, False]


def test_kinds() -> None:
    assert [one.kind for one in (PythonFrames, RubyFrames, JavaScriptFrames, JavaFrames)] == ["Python", "Ruby", "JavaScript", "Java"]
