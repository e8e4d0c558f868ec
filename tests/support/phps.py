"""PHP 8.3 as the package @libphp/amazon-linux-2-v83 of the npm registry has it: the program, its libraries and extensions.

It comes through the machine's own npm, is held to its SHA-256, and is unpacked once; nothing is installed.
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import debian
import nodes

PACKAGE, VERSION = "@libphp/amazon-linux-2-v83", "0.0.14"
SHA256 = "8dbaf346471ac7b59e6348c472b005b8b091c30685d577387360fc8c8d02b3a4"


def get() -> Path:
    """The folder of PHP: php/php, php/modules, lib. It is fetched and unpacked on first use. Raises NodeMissing."""
    base = debian.cache() / "php-8.3"
    with debian.locked(base):
        root = base / "root"
        if not root.exists():
            part = base / "part"
            shutil.rmtree(part, ignore_errors=True)
            with tarfile.open(nodes.packed(base, VERSION, SHA256, PACKAGE)) as archive:
                archive.extractall(part, filter="data")
            part.rename(root)
    return root / "package" / "native"
