"""`roots` names the Procs, Bindings, Methods, StringIOs, finalizers, threads and fibers that retain native memory of Ruby's objects."""

from __future__ import annotations

import json
import re
from pathlib import Path

import debuggers
import pytest
import rubies
import truth
from variants import mark_matrix_except

import cores
import findleaks

PROGRAM = truth.PROGRAMS / "ruby_retained.rb"
COUNT, BYTES = 3000, 2000
HOLDERS = {
    r"\$procs": "procs",
    r"\$methods": "methods",
    r"\$all": "global",
    r"\$bindings": "bindings",
    r"\$outputs": "StringIO",
    r"captured variables of methods of Router": "methods with blocks",
    r"\$handlers": "handlers that call singleton methods",
    r"captured variables of singleton methods size of objects in \$single": "singleton methods",
    r"block of trap USR2": "trap",
    r"instance variables @note of objects of String": "String variables",
    r"local variable kept of the main program": "main",
    r"fiber-local variables :batch of threads": "threads",
    r"finalizers of objects of Object": "finalizers",
    r"local variable or argument of (Object#)?in_thread \(.*ruby_retained\.rb:\d+\)": "thread",
    r"local variable or argument of (Object#)?in_fiber \(.*ruby_retained\.rb:\d+\)": "fiber",
}


@pytest.mark.parametrize("version", mark_matrix_except(rubies.READ, rubies.SYSTEM))
def test_holders_of_texts(version: str, tmp_path: Path) -> None:
    ruby = rubies.get(version)
    with cores.Running([*ruby.words, str(PROGRAM)], tmp_path, dict(ruby.environment)) as program:
        roots = json.loads(debuggers.findleaks("roots", "--json", "--limit", "0", "--pid", str(program.pid)))["roots"]
    for pattern, kind in HOLDERS.items():
        found = [one for one in roots if re.fullmatch(pattern + r" \(Ruby( variable)?\)", one["name"])]
        assert len(found) == 1, (kind, [one["name"] for one in roots][:20])
        assert COUNT * BYTES < found[0]["retained_bytes"] < COUNT * (BYTES + 600), (kind, found[0]["retained_bytes"])
        assert found[0]["retained_blocks"] >= COUNT
    assert not any("singleton methods call" in one["name"] for one in roots)


SHORT = """
module Shop; NAMES = Array.new(150_000) { |number| "name #{number}" }; end
GC.start
puts "ready"
$stdout.flush
sleep
"""


@pytest.mark.parametrize("version", mark_matrix_except(rubies.READ, rubies.SYSTEM))
def test_a_holder_of_objects_without_native_memory(version: str, tmp_path: Path) -> None:
    """The texts are in the slots of their objects. `verdict` names the variable that retains the objects."""
    ruby, source = rubies.get(version), tmp_path / "short.rb"
    source.write_text(SHORT)
    with cores.Running([*ruby.words, str(source)], tmp_path, dict(ruby.environment)) as program:
        # In cores, it is unknown that most pages of a mapping that Ruby 3.3 reserves were never touched. It hides smaller findings.
        found = json.loads(debuggers.findleaks("verdict", "--json", "--pid", str(program.pid)))
    (finding,) = [one for one in found["findings"] if one["finding"] == "held-by-managed-objects"]
    (variable,) = finding["evidence"]["variables"]
    assert variable["name"] == "Shop::NAMES"
    assert 150_000 * 40 <= variable["bytes"] < 150_000 * 50
    assert "Variables that retain it: Shop::NAMES (" in finding["cause"]


FIBERS = """
require "fiber"
class Feed
  def wait(number)
    Fiber.yield(number)
  end
  def open(number)
    Fiber.new { wait(number) }.tap(&:resume)
  end
end
FEED = Feed.new
ENDED = Array.new(100) { Fiber.new { 1 }.tap(&:resume) }
OPEN = Array.new(800) { |number| FEED.open(number) }
EACH = Array.new(20) { |number| [number, 1].each.tap(&:next) }
GC.start
puts ObjectSpace.each_object(Fiber).count(&:alive?), "ready"
$stdout.flush
sleep
"""


@pytest.mark.parametrize("version", mark_matrix_except(rubies.READ, rubies.SYSTEM))
def test_stacks_of_fibers(version: str, tmp_path: Path) -> None:
    """The stacks of fibers that have not ended belong to Ruby, and a finding names where they are suspended."""
    ruby, source = rubies.get(version), tmp_path / "fibers.rb"
    source.write_text(FIBERS)
    small = {"RUBY_FIBER_VM_STACK_SIZE": "65536", "RUBY_FIBER_MACHINE_STACK_SIZE": "131072"}
    with cores.Running([*ruby.words, str(source)], tmp_path, {**ruby.environment, **small}) as program:
        alive, core = int(program.output.split()[0]), program.kernel_core()
    assert alive in (820, 821)  # the fiber of the main thread, which has no fiber stack, may be included
    found = json.loads(debuggers.findleaks("verdict", "--json", str(core)))
    (finding,) = [one for one in found["findings"] if one["finding"] == "fiber-stacks"]
    assert (finding["evidence"]["fibers"], finding["evidence"]["fibers_in_place"]) == (820, 800)
    assert re.fullmatch(r"(Feed#)?wait \(.*fibers\.rb:5\)", finding["evidence"]["place"])
    (runtime,) = json.loads(debuggers.findleaks("runtime", "--json", str(core)))["runtimes"]
    (part,) = [one for one in runtime["parts"] if one["name"] == "stacks of fibers"]
    assert part["detail"] == "820 fibers" and part["bytes"] % 820 == 0


METHODS = """
class Row; end
ROWS = Array.new(3000) { |number| Row.new.tap { |row| 8.times { |at| row.define_singleton_method(:"column_#{at}") { number } } } }
GC.start
puts "ready"
$stdout.flush
sleep
"""


# In 2.7, the pages are blocks of malloc, so the heap pages are not a root.
@pytest.mark.parametrize("version", mark_matrix_except(rubies.READ[1:], rubies.SYSTEM))
def test_objects_with_methods_of_their_own(version: str, tmp_path: Path) -> None:
    """`verdict` counts singleton classes, which have no name, and says what creates them."""
    ruby, source = rubies.get(version), tmp_path / "methods.rb"
    source.write_text(METHODS)
    with cores.Running([*ruby.words, str(source)], tmp_path, dict(ruby.environment)) as program:
        found = json.loads(debuggers.findleaks("verdict", "--json", str(program.kernel_core())))["findings"]
    (cause, remedies) = next((one["cause"], one["try"]) for one in found if "Class (singleton)" in (one["cause"] or ""))
    count = re.search(r"([0-9,]+) (?:objects of )?Class \(singleton\)", cause)
    assert count is not None and 3000 <= int(count[1].replace(",", "")) < 3000 + 1200, cause
    assert any("define_singleton_method" in one for one in remedies), (cause, remedies)
    assert "reached by ROWS (Ruby variable): Array, 3,000 elements" in cause, cause


HEALTHY = """
THREADS = Array.new(3) { Thread.new { [1].each { |one| [one].each { sleep } } } }
NAMES = Array.new(30_000) { |number| "name #{number}" }
Fiber[:requests] = Array.new(30_000) { |number| "request #{number}" } if Fiber.respond_to?(:[])
Thread.pass until THREADS.all?(&:stop?)
GC.start
puts "ready"
$stdout.flush
sleep
"""


@pytest.mark.parametrize("version", mark_matrix_except(rubies.READ, "2.7"))
def test_heap_pages_and_root_fibers_are_reachable(version: str, tmp_path: Path) -> None:
    """Only pointers into the middle of their blocks refer to them: to the slots of a page, and to the execution context of a fiber.
    The storage of the main thread's fiber, which Ruby 3.2 introduced, is a variable."""
    ruby, source = rubies.get(version), tmp_path / "healthy.rb"
    source.write_text(HEALTHY)
    with cores.Running([*ruby.words, str(source)], tmp_path, dict(ruby.environment)) as program:
        found = json.loads(debuggers.findleaks("find", "--json", "--pid", str(program.pid)))
        text = debuggers.findleaks("find", "--pid", str(program.pid))
        with findleaks.attach(program.pid) as process:
            (runtime,) = [one for one in process._session.runtimes if one.name == "Ruby"]
            storage = [one.name for one in runtime.variables() if "fiber storage" in one.name]
    assert storage == (["main thread's fiber storage :requests"] if version in ("3.3", "3.4") else [])
    assert found["totals"]["possible"]["bytes"] < 64 << 10, found["totals"]
    assert found["heuristics"]["held"]["blocks"] > (100 if version == "2.7" else 0)
    # findleaks, not the program, defines these conventions.
    assert "after their start" not in text
