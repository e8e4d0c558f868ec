"""`roots` and `verdict` name the collections of classes without a name whose methods, constants or variables retain memory."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import debuggers
import pytest
import rubies
import truth
from variants import mark_matrix_except

import cores

PROGRAM = truth.PROGRAMS / "ruby_unnamed_classes.rb"
COUNT, BYTES = 500, 4000
COLLECTIONS = {
    "method": r"captured variables of methods render of classes in Template::CACHE \(Ruby\)",
    "constant": r"constants BODY of classes in Page::BY_PATH \(Ruby\)",
    "variable": r"variables @body of classes in Model\.@generated \(Ruby\)",
    "instance": r"captured variables of methods get of objects in \$objects \(Ruby\)",
    "module": r"captured variables of methods run of objects in \$extended \(Ruby\)",
    "singleton": r"captured variables of singleton methods start of objects in Plugin::ALL \(Ruby\)",
    "string": r"captured variables of singleton methods more of objects in \$strings \(Ruby\)",
    "class method": r"captured variables of singleton methods call of classes in \$callable \(Ruby\)",
    "struct": r"captured variables of methods describe of classes in Row::TYPES \(Ruby\)",
    "refinement": r"captured variables of methods fancy of modules in Patch::MODULES \(Ruby\)",
    "lambda": r"Hooks::TABLE \(Ruby variable\)",
    "entry": r"captured variables of methods evaluate of classes in ENGINE\.@entries \(Ruby\)",
    "pair": r"captured variables of methods apply of classes in \$pairs \(Ruby\)",
    "local": r"captured variables of methods visit of classes in local variable or argument of (Object#)?generate \(.*\.rb:\d+\) \(Ruby\)",
}
"""The name of the root that retains the texts of each kind."""


@pytest.fixture(scope="module", params=mark_matrix_except(rubies.READ, rubies.SYSTEM))
def core(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    ruby, folder = rubies.get(request.param), tmp_path_factory.mktemp("unnamed")
    with cores.Running([*ruby.words, str(PROGRAM)], folder, dict(ruby.environment)) as program:
        yield program.gcore()


@pytest.fixture(scope="module")
def roots(core: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(debuggers.findleaks("roots", "--json", "--limit", "0", str(core)))["roots"]
    return found


@pytest.mark.parametrize("kind", COLLECTIONS)
def test_the_collection_is_part_of_the_name(roots: list[dict[str, Any]], kind: str) -> None:
    (own,) = (one for one in roots if re.fullmatch(COLLECTIONS[kind], one["name"]))
    # A word on a stack may still refer to one of the last texts.
    assert COUNT - 3 <= own["retained_blocks"] < 5 * COUNT
    assert (COUNT - 3) * BYTES <= own["retained_bytes"] < COUNT * (BYTES + 600), own


def test_classes_in_constants_have_their_own_names(roots: list[dict[str, Any]]) -> None:
    named = [one["name"] for one in roots if re.match(r"Named\d+#own's captured variable body \(Ruby variable\)", one["name"])]
    assert len(named) >= COUNT - 3
    assert not any("without a name" in one["name"] for one in roots)


def test_entries_of_lists_of_subclasses_belong_to_no_variable(roots: list[dict[str, Any]]) -> None:
    """A stale word in the memory of a Regexp may refer to one entry. It does not reach the others."""
    assert not [one["name"] for one in roots if (one.get("what") or "").startswith("Regexp") and one["retained_blocks"] > 100]


ONE = """
class Template; CACHE = {}; end
20_000.times { |number| Template::CACHE[number] = Class.new { body = "#{number}".ljust(3000, "x"); define_method(:render) { body } } }
GC.start
puts "ready"
$stdout.flush
sleep
"""


def test_verdict_names_the_constant(tmp_path: Path) -> None:
    ruby, source = rubies.get(rubies.SYSTEM), tmp_path / "one.rb"
    source.write_text(ONE)
    with cores.Running([*ruby.words, str(source)], tmp_path, dict(ruby.environment)) as program:
        found = json.loads(debuggers.findleaks("verdict", "--json", "--pid", str(program.pid)))["findings"]
    assert "captured variables of methods render of classes in Template::CACHE (Ruby) alone retains" in found[0]["text"]
    assert found[0]["bytes"] >= 20_000 * 3000


OF_MODULE = """
class Module; DATA = "m".ljust(3000, "x"); end
999.times { |number| Object.const_set("Named#{number}", Class.new).const_set(:DATA, "#{number}".ljust(3000, "x")) }
$kept = Module.new
GC.start
puts "ready"
$stdout.flush
sleep
"""


def test_the_class_of_a_module_without_a_name_has_a_name(tmp_path: Path) -> None:
    """The class of a module is Module, unless the module has singleton methods. 1,000 classes have a constant DATA."""
    ruby, source = rubies.get(rubies.SYSTEM), tmp_path / "module.rb"
    source.write_text(OF_MODULE)
    with cores.Running([*ruby.words, str(source)], tmp_path, dict(ruby.environment)) as program:
        roots = json.loads(debuggers.findleaks("roots", "--json", "--limit", "0", "--pid", str(program.pid)))["roots"]
    assert not [one["name"] for one in roots if "without a name" in one["name"]]
    (found,) = (one for one in roots if one["name"].startswith("constants DATA of classes"))
    assert found["retained_bytes"] >= 1000 * 3000
