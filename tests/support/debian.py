"""Packages of other Debian releases, unpacked outside the system; nothing is installed.

The machine's apt downloads them, with its mirror (from `apt-get indextargets`), proxies and keys. Only the suite differs. Lists and
archives are stored in a private folder.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

Pins = Mapping[tuple[str, str], str]
"""SHA-256 of packages by name and version. apt checks every package against the signed index. These hashes also ensure that tests use the
same bytes as when they were written, for as long as the suites have these versions."""

_IDLE = re.compile(
    r".*-dev$|.*-dev-bin$|llvm-.*|debconf|dpkg|perl-base|tar|tzdata|ucf|procps|sensible-utils|media-types|icu-devtools|rpcsvc-proto|ncurses-bin"
)
"""Dependencies that programs do not need to run from an unpacked folder."""


PAUSES = (2.0, 10.0, 30.0)
"""Seconds before each further run of apt-get. apt-get repeats a download if the connection fails (Acquire::Retries), but not if the mirror
answers with an error, such as 503 if it is overloaded."""


class PackagesMissing(Exception):
    """A suite or package cannot be downloaded; the message lists what was tried."""


def cache() -> Path:
    """Return the folder for downloads and unpacked packages: $FINDLEAKS_CACHE, or ~/.cache/findleaks."""
    return Path(os.environ.get("FINDLEAKS_CACHE") or Path.home() / ".cache" / "findleaks")


def unpack_packages(
    suite: str, packages: Sequence[str], folder: Path, pins: Pins, dependencies: bool = False, architecture: str = "amd64"
) -> list[Path]:
    """Unpack packages of a suite in `folder`/root, unless they are already there, and return the package files.

    `dependencies`: include the packages that the programs need to run. Raises PackagesMissing.
    """
    with hold_lock(folder):
        root, stamp = folder / "root", folder / "unpacked"
        debs = sorted((folder / "debs").glob("*.deb"))
        there = set(packages) <= {deb.name.split("_")[0] for deb in debs}
        if not (there and stamp.exists() and stamp.read_text() == _hashes(debs, pins)):
            for leftover in (root, folder / "debs"):
                shutil.rmtree(leftover, ignore_errors=True)
            debs = _download(suite, packages, folder, dependencies, architecture)
            hashes = _hashes(debs, pins)
            root.mkdir()
            for deb in debs:
                subprocess.run(["dpkg", "-x", str(deb), str(root)], check=True)
            _keep_links_inside(root)
            for merged in ("lib", "lib64"):  # in suites with a merged /usr, these two links come from the package base-files
                if not (root / merged).exists():
                    (root / merged).symlink_to(Path("usr") / merged)
            stamp.write_text(hashes)
        return debs


def version_of(package: str, debs: Sequence[Path]) -> str:
    """The Debian version of one of these package files."""
    return next(deb.name.split("_")[1] for deb in debs if deb.name.startswith(package + "_")).replace("%3a", ":")


def _keep_links_inside(root: Path) -> None:
    """Make absolute links relative: /lib/… must refer to the unpacked tree, not to the machine's files."""
    for folder, folders, files in os.walk(root):
        for link in (Path(folder, name) for name in (*folders, *files)):
            if link.is_symlink() and os.readlink(link).startswith("/"):
                inside = root / os.readlink(link).lstrip("/")
                link.unlink()
                link.symlink_to(os.path.relpath(inside, folder))


def _hashes(debs: Sequence[Path], pins: Pins) -> str:
    """Return a line with name and SHA-256 for each package. Raises PackagesMissing if a hash differs from `pins`."""
    lines = []
    for deb in debs:
        digest = hashlib.sha256(deb.read_bytes()).hexdigest()
        name, version = deb.name.split("_")[:2]
        wanted = pins.get((name, version.replace("%3a", ":")), digest)
        if wanted != digest:
            raise PackagesMissing(f"{deb} has SHA-256 {digest}, not {wanted}: delete it and try again")
        lines.append(f"{deb.name} {digest}\n")
    return "".join(lines)


def source(suite: str, package: str, folder: Path, digest: str) -> Path:
    """Return the original archive (.orig.tar.*) of a source package, whose SHA-256 must be `digest`. Raises PackagesMissing."""
    with hold_lock(folder):
        there = sorted((folder / "debs").glob("*.orig.tar.*[!c]"))  # without its signature, .asc
        if not there:
            run = _apt(suite, folder, "deb-src")
            run("source", "--download-only", "--tar-only", package)
            shutil.rmtree(folder / "apt")
            there = sorted((folder / "debs").glob("*.orig.tar.*[!c]"))
    if len(there) != 1:
        raise PackagesMissing(f"Debian {suite}: the source package {package} has {len(there)} original archives")
    found = hashlib.sha256(there[0].read_bytes()).hexdigest()
    if found != digest:
        raise PackagesMissing(f"{there[0]} has SHA-256 {found}, not {digest}: delete it and try again")
    return there[0]


def build_source(suite: str, package: str, folder: Path, digest: str, commands: Iterable[Sequence[str]]) -> Path:
    """Run these commands once in the folder of a source package, and return the folder. `digest`: see `source`. Raises PackagesMissing, and
    RuntimeError if a command fails."""
    archive = source(suite, package, folder, digest)
    made, building = folder / "built", folder / "building"
    with hold_lock(folder):
        if not made.is_dir():
            shutil.rmtree(building, ignore_errors=True)
            building.mkdir()
            for command in (("tar", "-xf", str(archive), "--strip-components=1"), *commands):
                run_in(building, *command)
            building.rename(made)
    return made


def run_in(folder: Path, *command: str) -> None:
    """Run a command in a folder. Raises RuntimeError with the end of its output if it fails."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed in {folder}: {(done.stdout + done.stderr)[-2000:]}")


def _download(suite: str, packages: Sequence[str], folder: Path, dependencies: bool, architecture: str) -> list[Path]:
    """Download packages of `suite` into folder/debs."""
    run = _apt(suite, folder, "deb", architecture)
    wanted = list(packages)
    if dependencies:
        reported = run("install", "--simulate", "--no-install-recommends", *packages)
        wanted = [line.split()[1] for line in reported.splitlines() if line.startswith("Inst ")]
        wanted = [name for name in wanted if name in packages or not _IDLE.fullmatch(name)]
    run("download", *wanted)
    shutil.rmtree(folder / "apt")
    return sorted((folder / "debs").glob("*.deb"))


def _apt(suite: str, folder: Path, kind: str, architecture: str = "amd64") -> Callable[..., str]:
    """Return the apt-get command with separate, updated lists in folder/apt; downloads go to folder/debs."""
    private = folder / "apt"
    for part in ("lists/partial", "cache/archives/partial", "../debs"):
        (private / part).mkdir(parents=True, exist_ok=True)
    sources, status = private / "sources.list", private / "status"
    suites = (suite, "sid") if suite == "experimental" else (suite,)  # experimental is incomplete without sid
    sources.write_text("".join(f"{kind} {_mirror()} {one} main\n" for one in suites))
    status.write_text("")
    options = {
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "-",
        "Dir::State": private,
        "Dir::State::lists": private / "lists",
        "Dir::State::status": status,
        "Dir::Cache": private / "cache",
        "APT::Architecture": architecture,
        "APT::Architectures": architecture,
        "APT::Sandbox::User": "",
        "Acquire::Languages": "none",
        "Acquire::Retries": "3",
        "APT::Update::Error-Mode": "any",  # without this option, apt-get only warns if lists are missing
    }
    apt = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in options.items())]

    def run(*command: str) -> str:
        for pause in (*PAUSES, None):
            done = subprocess.run([*apt, *command], cwd=folder / "debs", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            if not done.returncode:
                return done.stdout
            if pause is None or "Failed to fetch" not in done.stdout:
                break
            time.sleep(pause)
        raise PackagesMissing(f"Debian {suite}: `apt-get {' '.join(command)}` failed:\n{done.stdout}")

    # The index of a suite without support may be expired; its signature is still checked.
    run("-oAcquire::Check-Valid-Until=false", "update")
    return run


def _mirror() -> str:
    """Return the URL of the Debian archive that this machine uses."""
    listed = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(REPO_URI) $(ORIGIN) $(LABEL) $(COMPONENT)"], capture_output=True, text=True, check=True
    ).stdout
    for line in listed.splitlines():
        uri, _, rest = line.partition(" ")
        if rest == "Debian Debian main":
            return uri
    raise PackagesMissing("`apt-get indextargets` lists no Debian archive: is this a Debian machine, and did `apt-get update` run?")


@contextmanager
def hold_lock(folder: Path) -> Iterator[None]:
    """Context manager: only one process at a time runs the body."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
