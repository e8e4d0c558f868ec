"""gperftools' tcmalloc of several Debian releases, unpacked outside the system, and programs that use it, preloaded or linked."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import debian
import libcs

LIBRARIES = "usr/lib/x86_64-linux-gnu"

SUITES = {"2.8.1": ("bullseye", "2.31"), "2.10": ("bookworm", "2.36"), "2.16": ("trixie", "2.41"), "2.18.1": ("sid", "2.43")}
"""The Debian suite of each gperftools, with its glibc. sid changes: `get` then warns, and tests run with sid's current version."""

PINNED: debian.Pins = {
    ("libgoogle-perftools-dev", "2.8.1-1"): "81545e1b6633289d9058789c22edf37a18ff013988c7a0f2e1119823012cc8fa",
    ("libgoogle-perftools4", "2.8.1-1"): "4dbd460edeb35d5870125385cfa50f01784ff888ebb34fd4b57c1e107608a715",
    ("libtcmalloc-minimal4", "2.8.1-1"): "6d16a9a6cb24877ffafc57dd9928341d25a9e80eacf9200a29f70810c43468d9",
    ("libgoogle-perftools-dev", "2.10-1"): "60dfea4f19e48ca36cd4feb24a58f78906fa2900c839b86b8489cceec5dab79a",
    ("libgoogle-perftools4", "2.10-1"): "492736bd488d85452ae3059dfb22f50b1d6eb465d835966809dd6ce88014f80d",
    ("libtcmalloc-minimal4", "2.10-1"): "464aa2e804b0d48300ad71edfe525599deed8765db4af7a8d9de60326dc8e4c7",
    ("libgoogle-perftools-dev", "2.16-1"): "6ab4468d3329153116c6dea46c64ba132f1e048fdf446180e5bb82c669b588c6",
    ("libgoogle-perftools4t64", "2.16-1"): "950cecafb550949e37650cf5e42c7e06086269537f5dbe1f956c43662f5c7f19",
    ("libtcmalloc-minimal4t64", "2.16-1"): "98fcefd2ae81bf1c332b84829e84b994b34b58f339416166b40682030d4a44e0",
    ("libgoogle-perftools-dev", "2.18.1-2"): "e9439c13e9dbdea232510cd20ce7c3f1f7f0207ca16165052fb79b932da48687",
    ("libgoogle-perftools4t64", "2.18.1-2"): "dd0b14852c08c483e9ce150b1f42068740483b75ce6b73618667a418654b04f5",
    ("libtcmalloc-minimal4t64", "2.18.1-2"): "a0126b0d0afc7c03276715ea6406330c078ca10b931e8911791fc86bfba244cc",
}


@dataclass(frozen=True)
class Tcmalloc:
    """An unpacked gperftools with the libc of its release."""

    version: str
    package: str
    root: Path
    libc: libcs.Libc

    def library(self, full: bool = False) -> Path:
        """Return libtcmalloc_minimal, or with `full` libtcmalloc, which can sample allocations."""
        return self.root / LIBRARIES / ("libtcmalloc.so.4" if full else "libtcmalloc_minimal.so.4")

    def environment(self, full: bool = False, preload: bool = True) -> dict[str, str]:
        """Return the environment that a program with this libc needs to run."""
        folders = [root / folder for root in (self.root, self.libc.root) for folder in (LIBRARIES, "lib/x86_64-linux-gnu")]
        return {"LD_LIBRARY_PATH": ":".join(map(str, folders)), **({"LD_PRELOAD": str(self.library(full))} if preload else {})}

    def compile(self, source: Path, output: Path, flags: Sequence[str], link: str = "", full: bool = False) -> Path:
        """Compile a program. `link`: "" (libc's malloc, for preloading), "shared" (with the shared library), "inside" (tcmalloc in a
        dynamically linked program), "static" or "static-pie"."""
        if link == "shared":
            flags = (*flags, "-Wl,--no-as-needed", str(self.library(full)), "-Wl,--allow-shlib-undefined")
        elif link:
            archive = self.root / LIBRARIES / ("libtcmalloc.a" if full else "libtcmalloc_minimal.a")
            # tcmalloc lacks malloc_trim. If glibc's malloc_trim is linked, so is glibc's malloc. The first definition of a name is used.
            how = (f"-{link}", "-Wl,-z,muldefs") if link.startswith("static") else ("-Wl,--allow-shlib-undefined",)
            flags = (*flags, *how, "-Wl,--whole-archive", str(archive), "-Wl,--no-whole-archive", "-lstdc++", "-lm")
        # Static programs also contain part of the compiler's libraries, which may need a newer libc than 2.31.
        libc = libcs.get("2.36") if link.startswith("static") and self.libc.version == "2.31" else self.libc
        return libc.compile(source, output, flags)


@functools.cache
def get(version: str) -> Tcmalloc:
    """Return the gperftools of this version, downloaded and unpacked at the first use. Raises debian.PackagesMissing."""
    suite, libc = SUITES[version]
    folder = debian.cache() / "tcmalloc" / suite
    name = "libtcmalloc-minimal4" if suite in ("bullseye", "bookworm") else "libtcmalloc-minimal4t64"
    full = name.replace("libtcmalloc-minimal", "libgoogle-perftools")
    packages = (name, full, "libgoogle-perftools-dev", "libunwind8", "liblzma5", "libstdc++6", "libgcc-s1")
    package = debian.version_of(name, debian.unpack_packages(suite, packages, folder, PINNED))
    if not package.startswith(version):
        warnings.warn(f"Debian {suite} has gperftools {package} now, no longer {version}: tested is what it has", stacklevel=2)
    return Tcmalloc(version, package, folder / "root", libcs.get(libc))
