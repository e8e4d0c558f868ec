"""Packaging: the folder of each package, and the build of the C engine. See pyproject.toml for the
rest.

The folders gdb/ and lldb/ have the names of the debuggers' own modules. So they are installed only
as findleaks.gdb and findleaks.lldb, and no installation puts the checkout's root on sys.path."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

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


setup(
    name="findleaks",
    version=re.findall(r'^__version__ = "([^"]+)"', text("common/__init__.py"), re.M)[0],
    description="Find native memory leaks post-mortem, in GDB, LLDB and on the command line",
    long_description=text("README.md") if (ROOT / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.9",
    packages=[*PACKAGE_DIR, *(f"findleaks.{name}" for name in find_packages("common"))],
    package_dir=PACKAGE_DIR,
    package_data={
        "findleaks": ["py.typed", "completions/*"],
        "findleaks.results": ["findleaks-1.schema.json"],
        "findleaks.report": ["words.js"],
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
    cmdclass={"build_ext": BuildKernel, "bdist_wheel": Wheel},
    install_requires=[
        # Needed to decode code, also in debuggers. Versions before 5.0.2 need setuptools; 6 renames
        # functions.
        "capstone>=5.0.2,<6",
        # Needed to read debug information, also in debuggers. 0.33 raises on DW_CFA_GNU_args_size,
        # and
        # needs Python 3.10.
        "pyelftools>=0.30,<0.33",
        # Needed for cores packed with zstd, on the command line. Python 3.14 includes a zstd
        # module.
        "zstandard>=0.19; python_version < '3.14'",
    ],
    # The formatting of ruff and the errors of mypy change with releases. Upper bounds keep old
    # checkouts passing.
    extras_require={
        "png": ["pillow>=9"],  # findleaks map -o FILE.png
        # findleaks find -o FILE.pb.gz, in debuggers too. 4.22 brought GetMessageClass.
        "pprof": ["protobuf>=4.25,<8"],
        "pandas": ["pandas>=1.3"],  # Blocks.to_pandas() of the Python API
        # findleaks find, blocks or triage -o FILE.parquet; Blocks.to_arrow()
        "parquet": ["pyarrow>=10"],
        "fleet": ["distributed>=2022.5", "pyarrow>=10"],  # findleaks triage --scheduler ADDRESS
        "test": [
            "argparse-manpage>=4.6,<5",
            "codespell>=2.3,<3",
            "distributed>=2022.5",
            "hypothesis>=6",
            "jsonschema>=4",
            "mypy>=1.19,<2.5",
            "pandas>=1.3",
            "pillow>=9",
            "protobuf>=4.25,<8",
            "pyarrow>=10",
            "pytest>=8",
            "pytest-xdist>=3.6,<4",
            "ruff>=0.17,<0.18",
            "setuptools>=64",
            "shtab>=1.8,<2",
            "wheel",
        ],
    },
    entry_points={"console_scripts": ["findleaks = findleaks.cli:run"]},
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Environment :: Console",
        "Intended Audience :: Developers",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: C",
        "Programming Language :: Python :: 3",
        "Topic :: Software Development :: Debuggers",
    ],
    zip_safe=False,
)
