"""The wheel of a release in file systems that contain only a Debian release's Python: no compiler, network, root user or debugger.

Ubuntu, Fedora and Alpine are not tested, because no package registry that these tests use has their packages. tools/build_wheels.py
checks that the libraries of the musl wheels depend only on libc.so.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import debian
import layouts
import pytest
from debuggers import ROOT
from schemas import tool

SUITES = {"bullseye": "3.9", "bookworm": "3.11", "trixie": "3.13"}
"""The Python version of each Debian release."""
NOBODY = 65534
WHEEL = "manylinux_2_17_x86_64"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel for glibc 2.17 as for a release."""
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--target", folder / "zig", "ziglang>=0.12"], check=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(folder / "zig"))
        build = tool("build_wheels")
        compiler = build._compiler(folder, build.MACHINES[WHEEL])
        source = layouts.checkout(folder / "source", whole=True)
        built = layouts.build(source, folder / "dist", CC=compiler, LDSHARED=f"{compiler} -shared")
    return built.rename(folder / built.name.replace("linux_x86_64", WHEEL))


@pytest.mark.matrix
@pytest.mark.parametrize("suite", SUITES)
def test_a_clean_root(suite: str, wheel: Path, tmp_path: Path) -> None:
    version = SUITES[suite]
    packages = ("python3", "python3-venv", f"python{version}-venv")
    debian.unpack_packages(suite, packages, debian.cache() / "roots" / suite, {}, dependencies=True)
    root = tmp_path / "root"
    shutil.copytree(debian.cache() / "roots" / suite / "root", root, symlinks=True)
    wheels, home = root / "wheels", root / "home"
    for folder in (wheels, home, root / "tmp"):
        folder.mkdir()
    os.chown(home, NOBODY, NOBODY)
    certificates = root / "etc/ssl/certs/ca-certificates.crt"  # pip needs this file; a script of the package would create it
    certificates.parent.mkdir(parents=True, exist_ok=True)
    certificates.write_bytes(b"".join(file.read_bytes() for file in sorted(root.glob("usr/share/ca-certificates/**/*.crt"))))
    (root / "dev").mkdir()
    for name, minor in {"null": 3, "urandom": 9}.items():
        os.mknod(root / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(1, minor))
        (root / "dev" / name).chmod(0o666)
    shutil.copy(wheel, wheels)
    shutil.copy(ROOT / "cores" / "sample.core.gz", root)
    platforms = [word for name in (WHEEL, "manylinux2014_x86_64") for word in ("--platform", name)]
    words = ["download", "-q", "-d", wheels, "--only-binary=:all:", "--python-version", version, *platforms, wheel]
    subprocess.run([sys.executable, "-m", "pip", *words], check=True)
    environment = {"HOME": "/home", "PATH": "/usr/bin", "TMPDIR": "/home", "LC_ALL": "C.UTF-8"}

    def run(*command: str) -> str:
        inside = ["/usr/bin/unshare", "--net", "/usr/sbin/chroot", f"--userspec={NOBODY}:{NOBODY}", str(root), *command]
        done = subprocess.run(inside, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    run("/usr/bin/python3", "-m", "venv", "/home/venv")
    run("/home/venv/bin/pip", "install", "-q", "--no-index", "--find-links", "/wheels", "findleaks")
    assert run("/home/venv/bin/findleaks", "-V") == f"findleaks {tool('release').version()}\n"  # no warning: the C engine is in use
    found = json.loads(run("/home/venv/bin/findleaks", "find", "--json", "/sample.core.gz"))
    assert (found["totals"]["definite"]["blocks"], found["totals"]["indirect"]["blocks"]) == (448, 262)
    assert found["trusted"] is True
    (root / "dev" / "null").unlink()  # as in a bare chroot
    assert "Leaked: 94 KiB in 710 blocks" in run("/home/venv/bin/findleaks", "verdict", "/sample.core.gz")
