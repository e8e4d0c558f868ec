"""What a file imports, anywhere in it: at the top, in functions, for type checkers."""

from __future__ import annotations

import ast
from collections.abc import Iterator


def imports(tree: ast.AST) -> Iterator[tuple[int, str, list[str]]]:
    """Of each import below `tree`: its line, the module, and the names taken from it ([] for `import module`)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.lineno, node.module, [alias.name for alias in node.names]
