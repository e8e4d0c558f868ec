"""Debian's glibc of several releases, unpacked beside the system's own, and programs linked against them.

The packages come through the machine's own apt: its mirror (asked of `apt-get indextargets`), its proxies, its keys; only the
suite differs, and lists and archives live in a private directory. Nothing is installed. A program is linked with the unpacked
tree as sysroot, its dynamic linker and an rpath into the tree, so that it starts like any other program (started as
`ld.so --library-path …` its core would show no libraries).
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import shutil
import subprocess
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("libc6", "libc6-dev", "linux-libc-dev")

OF_THEIR_TIME = {"bullseye": ("libgcc-10-dev",)}
"""A static program also takes part of libgcc, whose newer versions ask more of libc than 2.31 has."""

SUITES = {"2.31": "bullseye", "2.36": "bookworm", "2.41": "trixie", "2.43": "sid"}
"""Which Debian suite has which glibc. sid moves on: `get` warns when it did, and tests run with what it has."""

PINNED: dict[tuple[str, str], str] = {
    ("libc6", "2.31-13+deb11u11"): "05f7264da867b37f4c5ce49266b558ea1e81e05a9464f623152fca70f3550282",
    ("libc6-dev", "2.31-13+deb11u11"): "e7f7b45d9c5cfcf37609f0b6efd3c645272c812144703af89dfd32218fcb0fd3",
    ("libc6", "2.36-9+deb12u14"): "ba4f88f73dbc3ae9055f3c20f4523bfdbaf1ad13ff95e258924f77d20b4fbedf",
    ("libc6-dev", "2.36-9+deb12u14"): "0218fc2befcd784c1b0c6292c0a137ce89fad054efaa579ad083bee0f2c01aae",
    ("libc6", "2.41-12+deb13u4"): "967aa62605721081c3eb2a17650611a792aa802d76a6511d1840242623d204c9",
    ("libc6-dev", "2.41-12+deb13u4"): "1fda734dabcd80b77266a09ab62b0f1e3e16d8091db62899890b2200745632a2",
    ("libc6", "2.43-7"): "5c71715c51103beb4fbba9fe9f8dff604af6610dfa71c70bff342f54a7860803",
    ("libc6-dev", "2.43-7"): "7095b6c9cd209aac9bb54a03edf9f3544589f553f649b71eec29968ca8ea13ce",
}
"""SHA-256 of packages by name and version. apt has checked every package against the signed index already; the pins hold the
tests to the very bytes they were written with, as long as the suites have those versions."""


class LibcMissing(Exception):
    """A suite or package cannot be had; the message says what was tried."""


@dataclass(frozen=True)
class Libc:
    """An unpacked libc. `root` has its lib64, usr/include and so on; `package` is libc6's Debian version."""

    version: str
    suite: str
    package: str
    root: Path

    @property
    def linker(self) -> Path:
        return self.root / "lib64" / "ld-linux-x86-64.so.2"

    @property
    def library(self) -> Path:
        return (self.root / "lib" / "x86_64-linux-gnu" / "libc.so.6").resolve()

    def compile(self, source: Path, output: Path, flags: Sequence[str] = (), compiler: str = "gcc") -> Path:
        """Link `source` against this libc (dynamically, unless `flags` say -static or -static-pie)."""
        libraries = [self.root / "usr/lib/x86_64-linux-gnu", self.root / "lib/x86_64-linux-gnu"]
        static = any(flag.startswith("-static") for flag in flags)
        command = [compiler, f"--sysroot={self.root}", *flags, "-o", str(output), str(source)]
        command += [f"-B{path}" for path in libraries] + [f"-L{path}" for path in libraries]
        if static:
            command += [f"-L{path}" for path in self.root.glob("usr/lib/gcc/x86_64-linux-gnu/*")]
        else:
            command += [f"-Wl,--dynamic-linker={self.linker}", *(f"-Wl,-rpath,{path}" for path in reversed(libraries))]
        subprocess.run([*command, "-pthread", "-ldl"], check=True)
        return output


def cache() -> Path:
    """Where downloads and unpacked trees are kept: $FINDLEAKS_CACHE, or ~/.cache/findleaks."""
    return Path(os.environ.get("FINDLEAKS_CACHE") or Path.home() / ".cache" / "findleaks") / "libcs"


@functools.cache
def get(version: str) -> Libc:
    """The libc of this version, downloaded and unpacked on first use. Raises LibcMissing."""
    suite = SUITES[version]
    with _locked(cache() / suite):
        return _unpacked(version, suite, cache() / suite)


def _unpacked(version: str, suite: str, folder: Path) -> Libc:
    root, stamp = folder / "root", folder / "unpacked"
    debs = sorted((folder / "debs").glob("*.deb"))
    if not (stamp.exists() and stamp.read_text() == _stamp(debs) and len(debs) == len(_packages(suite))):
        for leftover in (root, folder / "debs"):
            shutil.rmtree(leftover, ignore_errors=True)
        debs = _download(suite, folder)
        root.mkdir()
        for deb in debs:
            subprocess.run(["dpkg", "-x", str(deb), str(root)], check=True)
        _keep_links_inside(root)
        for merged in ("lib", "lib64"):  # suites with a merged /usr leave these two links to the package base-files
            if not (root / merged).exists():
                (root / merged).symlink_to(Path("usr") / merged)
        stamp.write_text(_stamp(debs))
    package = next(deb.name.split("_")[1] for deb in debs if deb.name.startswith("libc6_")).replace("%3a", ":")
    if not package.startswith(version):
        warnings.warn(f"Debian {suite} has glibc {package} now, no longer {version}: tested is what it has", stacklevel=3)
    return Libc(version, suite, package, root)


def _packages(suite: str) -> tuple[str, ...]:
    return (*PACKAGES, *OF_THEIR_TIME.get(suite, ()))


def _keep_links_inside(root: Path) -> None:
    """Make absolute links relative: /lib/… must mean the tree's, not the machine's."""
    for folder, folders, files in os.walk(root):
        for link in (Path(folder, name) for name in (*folders, *files)):
            if link.is_symlink() and os.readlink(link).startswith("/"):
                inside = root / os.readlink(link).lstrip("/")
                link.unlink()
                link.symlink_to(os.path.relpath(inside, folder))


def _stamp(debs: Sequence[Path]) -> str:
    """Names and hashes of the packages; checks the pinned ones."""
    lines = []
    for deb in debs:
        digest = hashlib.sha256(deb.read_bytes()).hexdigest()
        wanted = PINNED.get((deb.name.split("_")[0], deb.name.split("_")[1]), digest)
        if wanted != digest:
            raise LibcMissing(f"{deb} has SHA-256 {digest}, not {wanted}: delete it and try again")
        lines.append(f"{deb.name} {digest}\n")
    return "".join(lines)


def _download(suite: str, folder: Path) -> list[Path]:
    """Fetch PACKAGES of `suite` into folder/debs."""
    private = folder / "apt"
    for part in ("lists/partial", "cache/archives/partial", "../debs"):
        (private / part).mkdir(parents=True, exist_ok=True)
    sources, status = private / "sources.list", private / "status"
    sources.write_text(f"deb {_mirror()} {suite} main\n")
    status.write_text("")
    options = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "-",
        "Dir::State": private,
        "Dir::State::lists": private / "lists",
        "Dir::State::status": status,
        "Dir::Cache": private / "cache",
        "APT::Architecture": "amd64",
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
    }
    apt = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in options.items())]
    # A suite past its support may keep an index that is no longer renewed; the signature is checked all the same.
    for command in ([*apt, "-oAcquire::Check-Valid-Until=false", "update"], [*apt, "download", *_packages(suite)]):
        done = subprocess.run(command, cwd=folder / "debs", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise LibcMissing(f"Debian {suite}: `apt-get {command[-1]}` failed:\n{done.stdout}")
    shutil.rmtree(private)
    return sorted((folder / "debs").glob("*.deb"))


def _mirror() -> str:
    """The Debian archive this machine is set up to use."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(ORIGIN) $(LABEL) $(COMPONENT)"], capture_output=True, text=True, check=True
    ).stdout
    for line in listed.splitlines():
        uri, _, rest = line.partition(" ")
        if rest == "Debian Debian main":
            return uri
    raise LibcMissing("`apt-get indextargets` lists no Debian archive: is this a Debian machine, and did `apt-get update` run?")


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One process unpacks at a time."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
