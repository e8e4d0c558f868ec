"""Apache httpd of Debian 12, and a module that retains data of each request (programs/mod_sessions.c). httpd is unpacked once; nothing is
installed."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import building
import debian

SUITE = "bookworm"
MODULES = "mpm_event", "authz_core"
CONFIGURATION = """
ServerRoot {folder}
PidFile {folder}/httpd.pid
ErrorLog {folder}/error.log
ServerName localhost
Listen 127.0.0.1:{port}
User nobody
Group nogroup
ServerLimit 1
StartServers 1
ThreadsPerChild 4
MaxRequestWorkers 4
MinSpareThreads 1
MaxSpareThreads 4
KeepAliveTimeout 600
MaxKeepAliveRequests 0
LoadModule sessions_module {module}
"""


def command(folder: Path, port: int, *options: str) -> Sequence[str]:
    """Compile the module with these compiler options, write the configuration, and return the command that starts httpd. One process
    answers all requests."""
    base = debian.cache() / "httpd"
    debian.unpack_packages(SUITE, ["apache2-bin"], base / "program", {}, dependencies=True)
    debian.unpack_packages(SUITE, ["apache2-dev", "libapr1-dev", "libaprutil1-dev"], base / "headers", {})
    root, headers = base / "program/root", base / "headers/root/usr/include"
    includes = [f"-I{headers / name}" for name in ("apache2", "apr-1.0")]
    module = building.compile_program(
        folder, "mod_sessions.c", "-O2", "-fPIC", "-shared", "-D_GNU_SOURCE", *includes, *options, name="mod_sessions.so"
    )
    loads = [f"LoadModule {name}_module {root}/usr/lib/apache2/modules/mod_{name}.so\n" for name in MODULES]
    (folder / "httpd.conf").write_text("".join(loads) + CONFIGURATION.format(folder=folder, port=port, module=module))
    libraries = root / "usr/lib/x86_64-linux-gnu", root / "lib/x86_64-linux-gnu"
    loader = ["/lib64/ld-linux-x86-64.so.2", "--library-path", ":".join(map(str, libraries))]
    return [*loader, str(root / "usr/sbin/apache2"), "-f", str(folder / "httpd.conf"), "-DFOREGROUND"]


def worker(pid: int) -> int:
    """Return the pid of the process that answers requests for the httpd with this pid."""
    children = subprocess.run(["ps", "--ppid", str(pid), "-o", "pid="], capture_output=True, text=True, check=True).stdout.split()
    assert len(children) == 1, children
    return int(children[0])
