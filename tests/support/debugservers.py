"""Servers of debug files: Debian's debuginfod for a folder, and servers that misbehave. All listen on 127.0.0.1."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from debuggers import PATIENCE
from real import free_port

DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@contextmanager
def debuginfod(folder: Path, build_id: str) -> Iterator[str]:
    """Start a debuginfod for the files in `folder`, and yield its URL once it serves the file with `build_id`."""
    port = free_port()
    words = ["debuginfod", "-F", "-d", ":memory:", "-p", str(port), "-t", "1", str(folder)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            limit = time.monotonic() + PATIENCE
            while not _serves(f"{url}/buildid/{build_id}/debuginfo"):
                if process.poll() is not None or time.monotonic() > limit:
                    raise RuntimeError(f"{' '.join(words)} does not serve {build_id}")
                time.sleep(0.05)
            yield url
        finally:
            process.kill()


def _serves(url: str) -> bool:
    try:
        with DIRECT.open(url, timeout=PATIENCE) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


class Misbehaving:
    """A server that handles each connection with `answer(socket)`, and counts the connections."""

    def __init__(self, answer: Callable[[socket.socket], None]) -> None:
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self.asked = threading.Semaphore(0)
        self.connections = 0
        self._open: list[socket.socket] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                one, _ = self._listening.accept()
                self._open.append(one)
                self.connections += 1
                self.asked.release()
                threading.Thread(target=self._one, args=(one,), daemon=True).start()

    def _one(self, one: socket.socket) -> None:
        with suppress(OSError):
            self._answer(one)

    def __enter__(self) -> Misbehaving:
        return self

    def __exit__(self, *_: object) -> None:
        for one in (self._listening, *self._open):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


def _request(one: socket.socket) -> None:
    """Read a request to its end."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = one.recv(1 << 12)
        if not piece:
            raise OSError
        data += piece


def silent(one: socket.socket) -> None:
    """Accept the connection, and send nothing."""
    while one.recv(1 << 12):
        pass


def garbage(one: socket.socket) -> None:
    """Send something else than the requested file, such as the welcome page of a gateway."""
    _request(one)
    page = b"<html>Welcome</html>"
    one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (len(page), page))
    one.close()


def no_http(one: socket.socket) -> None:
    _request(one)
    one.sendall(b"\x16\x03\x01 hello\r\n" * 3)
    one.close()


def endless(one: socket.socket) -> None:
    """Send data without an end."""
    _request(one)
    one.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
    while True:
        one.sendall(b"\x7fELF" * (1 << 14))


def huge(one: socket.socket) -> None:
    """Announce a file that is larger than any memory."""
    _request(one)
    one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 9000000000000000\r\n\r\n")
    silent(one)


def dripping(one: socket.socket) -> None:
    """Send one byte now and then."""
    _request(one)
    one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n")
    while True:
        one.sendall(b"\x7f")
        time.sleep(0.05)


def cut_off(one: socket.socket) -> None:
    _request(one)
    one.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\nConnection: close\r\n\r\n\x7fELF")
    one.close()


def failing(one: socket.socket) -> None:
    _request(one)
    one.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    one.close()


def circular(one: socket.socket) -> None:
    """Redirect to the same URL."""
    _request(one)
    one.sendall(b"HTTP/1.1 302 Found\r\nLocation: /again\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
    one.close()
