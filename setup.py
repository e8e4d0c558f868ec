"""Packaging: the folder of each package, and the build of the C engine. See pyproject.toml for the
rest.

The folders gdb/ and lldb/ have the names of the debuggers' own modules. So they are installed only
as findleaks.gdb and findleaks.lldb, and no installation puts the checkout's root on sys.path."""

from __future__ import annotations

import gzip
import os
import re
import runpy
import tarfile
import time
from pathlib import Path
from typing import Any, Optional

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.sdist import sdist

try:
    from setuptools.command.bdist_wheel import bdist_wheel
except ImportError:  # setuptools before 70.1
    from wheel.bdist_wheel import bdist_wheel

ROOT = Path(__file__).parent
PACKAGE_DIR = {"findleaks": "common", "findleaks.gdb": "gdb", "findleaks.lldb": "lldb"}
NATIVE = "findleaks.engine.native"
SOURCES: dict[str, Any] = runpy.run_path(str(ROOT / "common/engine/native/sources.py"))


class BuildKernel(build_ext):
    """Build the C engine as plain shared libraries.

    ctypes loads them into every Python version, so their names have no ABI tag. If they are built
    in another folder than their sources, the checksum of the sources is packaged with them."""

    def initialize_options(self) -> None:
        super().initialize_options()
        self.parallel = len(SOURCES["VARIANTS"])

    def run(self) -> None:
        super().run()
        if not self.inplace:
            Path(self.build_lib, *NATIVE.split("."), "sources.crc").write_text(f"{SOURCES['checksum']():#010x}\n", encoding="utf-8")

    def build_extension(self, ext: Extension) -> None:
        """Build with a folder of objects for each library, as all are made from the same
        sources."""
        folder = str(Path(self.build_temp, ext.name))
        objects = self.compiler.compile(ext.sources, output_dir=folder, extra_postargs=ext.extra_compile_args, depends=ext.depends)
        self.compiler.link_shared_object(objects, self.get_ext_fullpath(ext.name), extra_postargs=ext.extra_link_args)

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def get_export_symbols(self, ext: Extension) -> list[str]:
        return []  # The library is not a Python module, so it has no PyInit_ function to export.


class Wheel(bdist_wheel):
    """A wheel that serves every Python 3 of a platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


class SourceArchive(sdist):
    """A source archive that is identical if it is built again with the same SOURCE_DATE_EPOCH."""

    def make_archive(self, base_name: str, *_: Any, base_dir: Optional[str] = None, **__: Any) -> str:
        """Pack the folder `base_dir`: files by name, without owner, all of one time."""
        folder, name = Path(base_dir or "."), f"{base_name}.tar.gz"
        changed = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())

        def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime, member.mode = changed, 0o755 if member.mode & 0o111 else 0o644
            return member

        with (
            open(name, "wb") as file,
            gzip.GzipFile("", "wb", 9, file, changed) as packed,
            tarfile.open(fileobj=packed, mode="w") as archive,
        ):
            for path in sorted(folder.rglob("*")):
                archive.add(path, recursive=False, filter=plain)
        return name


def native_libraries() -> list[Extension]:
    """The libraries of the C engine, one for each word size and byte order of targets. They are
    `optional`: without a compiler, the installation continues with the Python engine."""
    sources, headers = (sorted(str(p.relative_to(ROOT)) for p in ROOT.glob(f"common/native/*.{kind}")) for kind in "ch")
    if not sources:
        return []
    flags = text("common/native/flags").split()  # The Makefile uses these flags, too.
    return [
        Extension(
            f"{NATIVE}.{Path(name).stem}",
            sources,
            depends=[*headers, "common/native/flags"],
            extra_compile_args=[*flags, *options],
            extra_link_args=["-pthread", "-s"],
            optional=True,
        )
        for name, options in SOURCES["options"]().items()
    ]


def text(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def description() -> str:
    """The README for a package index, where links to other files of the repository lead nowhere."""
    return re.sub(r"!?\[([^\]]*)\]\((?!https?:)[^)]*\)", r"\1", text("README.md"))


setup(
    version=re.findall(r'^__version__ = "([^"]+)"', text("common/__init__.py"), re.M)[0],
    long_description=description() if (ROOT / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    packages=[*PACKAGE_DIR, *(f"findleaks.{name}" for name in find_packages("common"))],
    package_dir=PACKAGE_DIR,
    include_package_data=False,  # MANIFEST.in lists more than a wheel needs.
    package_data={
        "findleaks": ["py.typed", "completions/*"],
        "findleaks.results": ["findleaks-1.schema.json"],
        "findleaks.report": ["words.js"],
        "findleaks.types": ["ready/*.hints"],
        "findleaks.report.flamegraph": ["page.html", "page.css", "data.js", "graph.js", "table.js", "page.js"],
        "findleaks.report.heapmap": ["page.html", "page.css", "page.js"],
        "findleaks.report.fleet": ["page.html", "page.css", "page.js"],
        "findleaks.report.growth": ["page.html", "page.css", "data.js", "chart.js", "table.js", "page.js"],
    },
    data_files=[
        ("share/man/man1", sorted(str(page.relative_to(ROOT)) for page in ROOT.glob("man/*.1"))),
        ("share/bash-completion/completions", ["common/completions/findleaks"]),
        ("share/zsh/site-functions", ["common/completions/_findleaks"]),
        ("share/fish/vendor_completions.d", ["common/completions/findleaks.fish"]),
    ],
    ext_modules=native_libraries(),
    cmdclass={"build_ext": BuildKernel, "bdist_wheel": Wheel, "sdist": SourceArchive},
    zip_safe=False,
)
