"""nginx with modules that print data of their process. Everything is unpacked and built once; nothing is installed.

nginx of Debian 12 and 13 has a module that prints the pools (programs/ngx_pools.c). nginx with debug information has a module that prints
objects in the pools (programs/ngx_objects.c)."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Sequence
from pathlib import Path

import crates
import debian
from building import PROGRAMS

VERSIONS = {"1.22": "bookworm", "1.26": "trixie"}
"""The Debian suite of each version of nginx."""
SOURCE = PROGRAMS / "ngx_pools.c"
CRATE = "nginx-src", "1.28.5+1.28.3", "60c9192630560c017a18e1da5b4c5de9d78450923f17325752c6f0f7f3911c86"
"""The crate with the sources of nginx 1.28.3, and the SHA-256 of its archive."""
OBJECTS = PROGRAMS / "ngx_objects.c"
STATIC = """
ngx_addon_name=ngx_http_objects_module
ngx_module_type=HTTP
ngx_module_name=$ngx_addon_name
ngx_module_srcs=$ngx_addon_dir/ngx_objects.c
. auto/module
"""
CONFIG = """
ngx_addon_name=ngx_http_pools_module
ngx_module_type=HTTP
ngx_module_name=$ngx_addon_name
ngx_module_srcs=$ngx_addon_dir/ngx_pools.c
. auto/module
"""


def program(version: str) -> Sequence[str]:
    """Return the command that starts this version of nginx with the libraries of its suite."""
    suite = VERSIONS[version]
    folder = debian.cache() / "nginx" / suite
    debian.unpack_packages(suite, ["nginx"], folder, {}, dependencies=True)
    root = folder / "root"
    libraries = root / "usr/lib/x86_64-linux-gnu", root / "lib/x86_64-linux-gnu"
    loader = next(path for path in (folder / "ld-linux-x86-64.so.2" for folder in libraries) if path.exists())
    return [str(loader), "--library-path", ":".join(map(str, libraries)), str(root / "usr/sbin/nginx")]


def module(version: str) -> Path:
    """Return the path of the module for this version of nginx. The module has the directive "print_pools FILE"."""
    suite = VERSIONS[version]
    folder = debian.cache() / "nginx" / f"{suite}-module"
    debian.unpack_packages(suite, ["nginx-dev"], folder, {})
    built = folder / f"built-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]}"
    with debian.hold_lock(folder):
        if not built.is_dir():
            _build(folder / "root/usr/share/nginx/src", folder / "building")
            (folder / "building").rename(built)
    return built / "ngx_http_pools_module.so"


def _build(sources: Path, folder: Path) -> None:
    """Build the module in `folder`. Options that affect the layout of nginx's structures are the same as in Debian's nginx."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "module").mkdir(parents=True)
    (folder / "module/config").write_text(CONFIG)
    shutil.copy(SOURCE, folder / "module")
    options = [f"--builddir={folder}", f"--add-dynamic-module={folder / 'module'}", "--with-compat", "--with-debug"]
    configure = ["sh", "./configure", *options, "--without-http_gzip_module"]
    debian.run_in(sources, *configure)
    debian.run_in(sources, "make", "--silent", "-f", str(folder / "Makefile"), "modules")


def with_debug_info() -> Path:
    """Return the path of an nginx with debug information. It has the directive "print_objects FILE"."""
    folder = debian.cache() / "nginx" / "debug"
    built = folder / f"built-{hashlib.sha256(OBJECTS.read_bytes()).hexdigest()[:12]}"
    source = crates.source(folder / "crate", *CRATE) / "nginx"
    with debian.hold_lock(folder):
        if not built.is_dir():
            building = folder / "building"
            shutil.rmtree(building, ignore_errors=True)
            shutil.copytree(source, building)
            (building / "module").mkdir()
            (building / "module/config").write_text(STATIC)
            shutil.copy(OBJECTS, building / "module")
            options = [f"--add-module={building / 'module'}", "--with-cc-opt=-g -O2", "--without-http_rewrite_module"]
            debian.run_in(building, "sh", "auto/configure", *options, "--without-http_gzip_module")
            debian.run_in(building, "make", "--silent", "-j2")
            built.mkdir()
            (building / "objs/nginx").rename(built / "nginx")
            shutil.rmtree(building)
    return built / "nginx"
