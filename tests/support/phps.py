"""PHP 8.1 and 8.3 from the npm packages @libphp/amazon-linux-2-v8x: the program, its libraries and extensions.

The machine's npm downloads them. Their SHA-256 is checked, and they are unpacked once; nothing is installed.
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path

import debian
import nodes

PACKAGES = {
    "8.1": ("@libphp/amazon-linux-2-v81", "0.0.12", "59c18b522a6fa6e6a2d323edb3cc187cf52b187e635960f8d447c61d7b641c3a"),
    "8.3": ("@libphp/amazon-linux-2-v83", "0.0.14", "8dbaf346471ac7b59e6348c472b005b8b091c30685d577387360fc8c8d02b3a4"),
}


def get(version: str) -> Path:
    """Return the folder of a PHP version, which contains php/php, php/modules and lib. The package
    is downloaded and unpacked on first use. Raises NodeMissing."""
    package, release, sha256 = PACKAGES[version]
    base = debian.cache() / f"php-{version}"
    with debian.hold_lock(base):
        root = base / "root"
        if not root.exists():
            part = base / "part"
            shutil.rmtree(part, ignore_errors=True)
            with tarfile.open(nodes.pack(base, release, sha256, package)) as archive:
                archive.extractall(part, filter="data")
            part.rename(root)
    return root / "package" / "native"
