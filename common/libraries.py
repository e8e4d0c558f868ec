"""Check findleaks' libraries before they are imported. common/bootstrap.py finds them."""

from __future__ import annotations

import os.path
import sys
from importlib.machinery import PathFinder
from importlib.util import find_spec
from typing import Optional


def is_in_working_folder(name: str) -> bool:
    """Whether `import name` would run a file that is found only through a relative entry of
    sys.path.
    Such a file is not an installed library: LLDB has "." in sys.path, and untrusted files may come
    with a core. If `name` is a package in a namespace, the namespace is imported."""
    if name in sys.modules:
        return False
    spec = find_spec(name)
    if spec is None or spec.origin is None:
        return False
    relative = [entry for entry in sys.path if not os.path.isabs(entry)]
    absolute = [entry for entry in sys.path if os.path.isabs(entry)]
    return _origin(name, relative) == os.path.abspath(spec.origin) != _origin(name, absolute)


def _origin(name: str, entries: list[str]) -> Optional[str]:
    *namespace, _ = name.split(".")
    spec = PathFinder.find_spec(name, [os.path.join(entry, *namespace) for entry in entries])
    return None if spec is None or spec.origin is None else os.path.abspath(spec.origin)
