"""Build everything that is uploaded for a release: the source archive, and four wheels that serve every Python.

usage: make wheels, or: python3 tools/build_wheels.py [FOLDER]

The compiler is `zig cc` (package ziglang), which links against any version of glibc and against musl for each machine: so the wheels run
on glibc 2.17 and newer and on musl 1.2. Files have the time of the last commit (SOURCE_DATE_EPOCH): a second build is identical. The
programs that check the archives end the build if they find a fault: twine, check-wheel-contents, auditwheel. auditwheel looks up musl's
libc.so among the files of this machine, where that name is a linker script of glibc. Wheels for musl are therefore checked here.

FOLDER (by default dist) gets the source archive and the wheel for this machine, so that `pip install FOLDER/*.whl` works. The wheels for
other machines, which pip would refuse, are in FOLDER/other-machines."""

from __future__ import annotations

import io
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from elftools.elf.dynamic import DynamicSection, DynamicTag
from elftools.elf.elffile import ELFFile
from packaging.tags import platform_tags

ROOT = Path(__file__).parents[1]
MACHINES: Mapping[str, str] = {
    "manylinux_2_17_x86_64": "x86_64-linux-gnu.2.17",
    "manylinux_2_17_aarch64": "aarch64-linux-gnu.2.17",
    "musllinux_1_2_x86_64": "x86_64-linux-musl",
    "musllinux_1_2_aarch64": "aarch64-linux-musl",
}
"""zig's name of the target by the wheel's platform tag."""
OTHERS = "other-machines"
"""The folder of the wheels that do not run on the machine that builds them."""
DUPLICATES = "W002"  # check-wheel-contents: __init__.py files with equal contents are meant.


def main(folder: Path) -> None:
    """Build all archives in `folder`, which must not contain others, and check them."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        sys.exit(f"{folder} is not empty: the archives of one release belong in a folder of their own")
    last = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    environment = {**os.environ, "SOURCE_DATE_EPOCH": os.environ.get("SOURCE_DATE_EPOCH", last)}
    _run("-m", "build", "--sdist", "--outdir", str(folder), str(ROOT), environment=environment)
    (archive,) = folder.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as place:
        source = _unpack(archive, Path(place))
        for platform, target in MACHINES.items():
            compiler = _compiler(Path(place), target)
            built = {**environment, "CC": compiler, "LDSHARED": f"{compiler} -shared"}
            words = ["-m", "build", "--wheel", "--outdir", str(folder), f"-C--build-option=--plat-name={platform}", str(source)]
            _run(*words, environment=built)
            _clean(source)
    archives = sorted(map(str, folder.iterdir()))
    wheels = [name for name in archives if name.endswith(".whl")]
    _run("-m", "twine", "check", "--strict", *archives, environment=environment)
    _run("-m", "check_wheel_contents", "--ignore", DUPLICATES, *wheels, environment=environment)
    for wheel in wheels:
        _check_platform(wheel)
    (folder / OTHERS).mkdir()
    for wheel in wheels:
        if _platform(wheel) not in platform_tags():
            shutil.move(wheel, folder / OTHERS)
    print("\n".join(str(path) for path in sorted(folder.rglob("*")) if path.is_file()))


def _platform(wheel: str) -> str:
    """Return the platform tag in the name of a wheel."""
    return wheel.rpartition("-")[2].removesuffix(".whl")


def _run(*words: str, environment: Mapping[str, str]) -> None:
    done = subprocess.run([sys.executable, *words], env=dict(environment), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed:\n{done.stdout}")


def _unpack(archive: Path, folder: Path) -> Path:
    """Unpack the source archive: what the wheels are built from is what is uploaded."""
    subprocess.run(["tar", "-xzf", archive, "-C", folder], check=True)
    return folder / archive.name[: -len(".tar.gz")]


def _compiler(folder: Path, target: str) -> str:
    """A program that compiles C for `target`. setuptools takes the name of one program."""
    program = folder / f"cc-{target}"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ziglang cc -target {target} "$@"\n', encoding="utf-8")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)


def _clean(source: Path) -> None:
    """Remove the objects of one machine before the next one's are built."""
    subprocess.run(["rm", "-rf", source / "build"], check=True)


def _libraries(wheel: str) -> Iterator[tuple[str, bytes]]:
    """Yield the names and contents of the shared libraries in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.endswith(".so"):
                yield name, archive.read(name)


def _dynamic_tags(content: bytes) -> list[DynamicTag]:
    """Return the entries of a shared library's dynamic section."""
    section = ELFFile(io.BytesIO(content)).get_section_by_name(".dynamic")
    return list(section.iter_tags()) if isinstance(section, DynamicSection) else []


def _check_platform(wheel: str) -> None:
    """Check that the libraries in the wheel need no more than its tag promises."""
    if "-musllinux_" in wheel:
        for name, content in _libraries(wheel):
            needed = {tag.needed for tag in _dynamic_tags(content) if tag.entry.d_tag == "DT_NEEDED"}
            if not needed <= {"libc.so"}:
                sys.exit(f"{wheel}: {name} needs {', '.join(sorted(needed))}; musl provides only libc.so")
        return
    done = subprocess.run([sys.executable, "-m", "auditwheel", "show", wheel], capture_output=True, text=True)
    tag = _platform(wheel)
    if done.returncode or f'"{tag}"' not in " ".join(done.stdout.split()):
        sys.exit(f"{wheel}: auditwheel does not confirm the tag {tag}:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "dist")
