"""Modules of an allocator or a runtime do not import each other in cycles, whether the import is at the top, in a
function, or for types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from pathlib import Path

from sources import Source

COMMON = Path(__file__).parents[2] / "common"


def read_imports(root: Path) -> dict[str, set[str]]:
    """Return, for each module of `root`, all modules of `root` that it imports."""
    files = {_name(path.relative_to(root)): path for path in root.rglob("*.py")}
    found = {}
    for name, path in files.items():
        taken: set[str] = set()
        for _, module, names in Source(path, name).imports:
            taken |= {f"{module}.{one}" for one in names} & files.keys() or {module}
        found[name] = taken & files.keys() - {name}
    return found


def _name(path: Path) -> str:
    parts = path.with_suffix("").parts
    return ".".join(("findleaks", *(parts[:-1] if parts[-1] == "__init__" else parts)))


def find_cycles(graph: Mapping[str, Set[str]]) -> Iterator[set[str]]:
    """Return the sets of modules that import each other in a cycle, directly or indirectly."""
    left = set(graph)
    while left:
        start = left.pop()
        forth = _reach(start, graph)
        circle = {start, *(one for one in forth if start in _reach(one, graph))} if start in forth else {start}
        left -= circle
        if len(circle) > 1:
            yield circle


def _reach(start: str, graph: Mapping[str, Set[str]]) -> set[str]:
    found: set[str] = set()
    todo = [start]
    while todo:
        new = graph[todo.pop()] - found
        found |= new
        todo += new
    return found


def test_no_import_cycles() -> None:
    rooms = ("findleaks.allocators.", "findleaks.runtimes.")
    graph = read_imports(COMMON)
    assert len([name for name in graph if name.startswith(rooms)]) > 100
    assert [sorted(one) for one in find_cycles(graph) if any(name.startswith(rooms) for name in one)] == []


def test_import_cycles_are_detected(tmp_path: Path) -> None:
    """The cycle has an import for types and an import in a function."""
    (tmp_path / "room").mkdir()
    (tmp_path / "room/__init__.py").write_text("def find():\n    from findleaks.room.one import look\n")
    (tmp_path / "room/one.py").write_text("if TYPE_CHECKING:\n    from findleaks.room import two\n")
    (tmp_path / "room/two.py").write_text("import findleaks.room.one\nimport os\n")
    (tmp_path / "room/three.py").write_text("from findleaks.room.two import Two\n")
    assert list(find_cycles(read_imports(tmp_path))) == [{"findleaks.room.one", "findleaks.room.two"}]
