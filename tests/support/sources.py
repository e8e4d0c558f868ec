"""A Python file of the repository, parsed once for all rules."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

_SCRIPT = "if __name__ == '__main__':"


@dataclass(frozen=True)
class Source:
    """`name` is the path below the root of the repository, with slashes."""

    path: Path
    name: str

    @property
    def root(self) -> Path:
        return self.path.parents[self.name.count("/")]

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Return all nodes of the syntax tree, breadth first."""
        return list(ast.walk(self._tree))

    @cached_property
    def _tree(self) -> ast.Module:
        return ast.parse(self.text, str(self.path))

    @cached_property
    def imports(self) -> list[tuple[int, str, list[str]]]:
        """Yield line, module, and imported names ([] for `import module`) of each import, anywhere in the file."""
        return list(_imports(self.nodes))

    @cached_property
    def imports_as_module(self) -> list[tuple[int, str, list[str]]]:
        """Like `imports`, without the imports that are executed only if the file is run as a script."""
        as_script = [entry for entry in self._tree.body if isinstance(entry, ast.If) and ast.unparse(entry).startswith(_SCRIPT)]
        left_out = {line for entry in as_script for line, _, _ in _imports(ast.walk(entry))}
        return [one for one in self.imports if one[0] not in left_out]


def _imports(nodes: list[ast.AST] | Iterator[ast.AST]) -> Iterator[tuple[int, str, list[str]]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module, [alias.name for alias in node.names]
