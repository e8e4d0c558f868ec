"""musl of several releases: Debian's packages, unpacked outside the system, and programs linked against them. Debian does not build musl's
oldmalloc; it is compiled from the source packages of the same releases.

oldmalloc is available in two forms: its three files, compiled in a second and linked statically before the package's libc.a; and a complete
libc configured with --with-malloc=oldmalloc, for dynamic programs, which takes a minute the first time.
"""

from __future__ import annotations

import functools
import shutil
import subprocess
import tarfile
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import debian

SUITES = {"1.2.2": "bullseye", "1.2.3": "bookworm", "1.2.5": "trixie", "1.2.6": "sid"}
"""The Debian suite of each musl. sid changes: `get` then warns, and tests run with sid's current version."""

PACKAGES = ("musl", "musl-dev")

PINNED: debian.Pins = {
    ("musl", "1.2.2-1"): "5932c2e94fefcca7779ea454a2c9e94a1f2e5f61483b5c7726734cf56f25ff3f",
    ("musl-dev", "1.2.2-1"): "b017792ad6ba3650b4889238c73cd19c1d6b0e39ca8319cdd3ad9e16374e614e",
    ("musl", "1.2.3-1"): "4fc1e3d9b579f5c682ca99a4d45aec08d72a2e6b82b4c2e1bbcb7095466ae96d",
    ("musl-dev", "1.2.3-1"): "7c34f29a0c1aa12f6da1d25ed6de6fe6bbd9e048ee76b3dcb88c5e51fb65507f",
    ("musl", "1.2.5-3.1~deb13u1"): "fd4231e1c189c0ebe01182747f83817593fefa7f6b690c484410646288b60058",
    ("musl-dev", "1.2.5-3.1~deb13u1"): "a3f7d47e452129bb65aae201d6c115abf4d5d3efb136b38b7c6b4fa03ec065e9",
    ("musl", "1.2.6-2"): "bb90a58274543f438b5a8e1a577b16d5bc0725ca55413131ae1f3882070760d6",
    ("musl-dev", "1.2.6-2"): "4601fcee854a8efe9d5e3fcca32a671971a290a3106c6f6803e0b896821de9ce",
}

SOURCES = {
    "1.2.2": "9b969322012d796dc23dda27a35866034fa67d8fb67e0e2c45c913c3d43219dd",
    "1.2.3": "7d5b0b6062521e4627e099e4c9dc8248d32a30285e959b7eecaa780cf8cfd4a4",
    "1.2.5": "a9a118bbe84d8764da0ea0d28b3ab3fae8477fc7e4085d90102b8596fc7c75e4",
    "1.2.6": "d585fd3b613c66151fc3249e8ed44f77020cb5e6c1e635a616d3f9f82460512a",
}
"""SHA-256 of the original archives in Debian's source packages."""

FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-g", "-nostdinc", "-nostdlib")
LINKS = {
    "dynamic": (("-O1", "-fPIE", "-pie"), "Scrt1.o", "crtbeginS.o", "crtendS.o"),
    "static": (("-O2", "-fno-pie", "-static", "-no-pie"), "crt1.o", "crtbeginT.o", "crtend.o"),
    "static-pie": (("-O1", "-fPIE", "-static-pie", "-Wl,-z,text"), "rcrt1.o", "crtbeginS.o", "crtendS.o"),
}
"""The ways to link programs: the compiler's flags, and the first and last object files."""


@dataclass(frozen=True)
class Musl:
    """A musl: the folders of its headers, of its archive and startup files, and its ld.so. `objects` are linked before the archive."""

    version: str
    headers: Path
    libraries: Path
    linker: Path
    objects: tuple[Path, ...] = ()

    def compile(self, source: Path, output: Path, link: str, *flags: str) -> Path:
        """Compile a program, linked in one of the ways of LINKS."""
        chosen, first, begin, end = LINKS[link]
        command = ["gcc", *FLAGS, *self._headers(), *chosen, *flags, "-o", str(output)]
        command += [str(self.libraries / first), str(self.libraries / "crti.o"), _gcc(begin), str(source), *map(str, self.objects)]
        if link == "dynamic":
            command += [f"-Wl,--dynamic-linker={self.linker}", str(self.linker), "-lgcc"]
        else:
            command += [f"-L{self.libraries}", "-Wl,--start-group", "-lc", "-lgcc", "-lgcc_eh", "-Wl,--end-group"]
        subprocess.run([*command, _gcc(end), str(self.libraries / "crtn.o")], check=True)
        return output

    def library(self, source: Path, output: Path, *flags: str) -> Path:
        """Compile a library that such programs can load."""
        subprocess.run(["gcc", *FLAGS, *self._headers(), "-shared", "-fPIC", *flags, "-o", str(output), str(source)], check=True)
        return output

    def _headers(self) -> list[str]:
        return ["-isystem", str(self.headers), "-isystem", _gcc("include")]


@functools.cache
def _gcc(name: str) -> str:
    return subprocess.run(["gcc", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()


@functools.cache
def get(version: str) -> Musl:
    """Return the package of this version, downloaded and unpacked at the first use. Raises debian.PackagesMissing."""
    suite = SUITES[version]
    folder = debian.cache() / "musl" / suite
    package = debian.version_of("musl", debian.unpack_packages(suite, PACKAGES, folder, PINNED))
    if not package.startswith(version):
        warnings.warn(f"Debian {suite} has musl {package} now, no longer {version}: tested is what it has", stacklevel=2)
    root = folder / "root"
    triplet = "x86_64-linux-musl"
    return Musl(version, root / "usr/include" / triplet, root / "usr/lib" / triplet, (root / "lib/ld-musl-x86_64.so.1").resolve())


def _mend(file: Path) -> None:
    """Rename a function of oldmalloc 1.2.2, which otherwise cannot be linked: it is called __libc_malloc, like a function of lite_malloc.c.
    1.2.3 has the same change."""
    name, right = "#define malloc __libc_malloc\n", "#define malloc __libc_malloc_impl\n"
    text = file.read_text()
    assert name in text or right in text
    if name in text:
        file.write_text(text.replace(name, right))


def unpacked_source(version: str) -> Path:
    """Return the source of a release, changed so that its oldmalloc can be linked."""
    suite = SUITES[version]
    folder = debian.cache() / "musl" / f"{suite}-source"
    archive = debian.source(suite, "musl", folder, SOURCES[version])
    unpacked = folder / f"musl-{version}"
    with debian.hold_lock(folder):
        if not unpacked.exists():
            part = folder / "part"
            shutil.rmtree(part, ignore_errors=True)
            with tarfile.open(archive) as tar:
                tar.extractall(part, filter="data")
            (part / unpacked.name).rename(unpacked)
        if version == "1.2.2":
            _mend(unpacked / "src/malloc/oldmalloc/malloc.c")
    return unpacked


@functools.cache
def old_static(version: str) -> Musl:
    """Return oldmalloc with the package's libc.a, for static programs. The result is the same as with --with-malloc=oldmalloc."""
    musl, source = get(version), unpacked_source(version)
    objects = source / "objects"
    objects.mkdir(exist_ok=True)
    made = []
    folders = ["arch/x86_64", "arch/generic", "src/include", "src/internal", "src/malloc/oldmalloc"]
    for file in sorted((source / "src/malloc/oldmalloc").glob("*.c")):
        output = objects / f"{file.stem}.o"
        command = ["gcc", "-std=c99", "-nostdinc", "-D_XOPEN_SOURCE=700", "-O2", "-ffreestanding", "-fPIC", "-fno-stack-protector"]
        command += [f"-I{source / folder}" for folder in folders] + [f"-I{musl.headers}", "-w", "-c", "-o"]
        with debian.hold_lock(source.parent):
            part = output.with_suffix(".part")
            subprocess.run([*command, str(part), str(file)], check=True)
            part.rename(output)
        made.append(output)
    return Musl(f"{version}-old", musl.headers, musl.libraries, musl.linker, tuple(made))


@functools.cache
def old(version: str) -> Musl:
    """Return a complete libc with oldmalloc, configured and built at the first use."""
    source = unpacked_source(version)
    prefix = source.parent / "old"
    with debian.hold_lock(source.parent):
        if not (prefix / "lib/libc.so").exists():
            shutil.rmtree(prefix, ignore_errors=True)
            for command in (
                ["./configure", f"--prefix={prefix}", f"--syslibdir={prefix}/lib", "--with-malloc=oldmalloc"],
                ["make", "-j4", "install-headers", "install-libs"],
            ):
                subprocess.run(command, cwd=source, check=True, stdout=subprocess.DEVNULL)
    return Musl(f"{version}-old", prefix / "include", prefix / "lib", prefix / "lib/libc.so")


def choose(name: str, link: str) -> Musl:
    """Return the musl with this name: "1.2.5", or "1.2.5-old" for oldmalloc. Of the two forms of oldmalloc, use the form that is built
    faster and allows `link`."""
    version, _, malloc = name.partition("-")
    if not malloc:
        return get(version)
    # 1.2.2 has its entry points in different files.
    return old(version) if link == "dynamic" or version == "1.2.2" else old_static(version)


__all__: Sequence[str] = ("LINKS", "SUITES", "Musl", "choose", "get", "old", "old_static")
