"""Run Chromium in headless mode, and read the statistics that Chromium itself collects about the
memory of its processes (memory-infra)."""

from __future__ import annotations

import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

PATIENCE = 120  # seconds
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--remote-debugging-port=0"),
)
MEMORY_INFRA = {
    "includedCategories": ["disabled-by-default-memory-infra"],
    "excludedCategories": ["*"],
    "memoryDumpConfig": {"triggers": []},
}


class Chromium:
    """A browser that shows a local page."""

    def __init__(self, page: Path, folder: Path) -> None:
        self.profile = folder / "profile"
        command = [shutil.which("chromium") or "chromium", *FLAGS, f"--user-data-dir={self.profile}", page.as_uri()]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)

    def __enter__(self) -> Chromium:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE)

    def processes(self) -> dict[int, str]:
        """Return the command line of each process of this browser, by process ID."""
        parents, words = {}, {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
                    words[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
        found = {self.process.pid}
        for _ in range(4):  # a renderer is a child of a zygote, which is a child of the browser
            found.update(pid for pid, parent in parents.items() if parent in found)
        return {
            pid: words[pid] for pid in sorted(found) if "chromium" in words.get(pid, "") and "crashpad_handler" not in words[pid].split()[0]
        }

    def dump(self) -> dict[int, dict[str, dict[str, int]]]:
        """Return the current figures of memory-infra, by process ID and by the path of the
        allocator, such as "malloc/partitions/allocator"."""
        connection = _Connection(self._address())
        connection.call("Tracing.start", transferMode="ReportEvents", traceConfig=MEMORY_INFRA)
        assert connection.call("Tracing.requestMemoryDump", levelOfDetail="detailed")["success"]
        connection.call("Tracing.end")
        connection.wait_for("Tracing.tracingComplete")
        found: dict[int, dict[str, dict[str, int]]] = {}
        for event in connection.events:
            for path, one in event.get("args", {}).get("dumps", {}).get("allocators", {}).items() if event.get("ph") == "v" else ():
                values = {name: int(value["value"], 16) for name, value in one.get("attrs", {}).items() if value["type"] == "scalar"}
                found.setdefault(event["pid"], {})[path] = values
        return found

    def _address(self) -> tuple[int, str]:
        """Return the port and the path of the browser's DevTools."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            try:
                port, path = (self.profile / "DevToolsActivePort").read_text().split()
                return int(port), path
            except (OSError, ValueError):
                time.sleep(0.1)
        raise RuntimeError("chromium has no DevTools")


class _Connection:
    """A WebSocket connection (RFC 6455) to DevTools."""

    def __init__(self, address: tuple[int, str]) -> None:
        port, path = address
        self.socket = socket.create_connection(("127.0.0.1", port), PATIENCE)
        key = base64.b64encode(os.urandom(16)).decode()
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        self.socket.sendall(f"{head}Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode())
        self.file: BinaryIO = self.socket.makefile("rb")
        while self.file.readline().strip():
            pass
        self.sent = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, **params: object) -> dict[str, Any]:
        self.sent += 1
        data = json.dumps({"id": self.sent, "method": method, "params": params}).encode()
        self.socket.sendall(b"\x81\xfe" + struct.pack(">H", len(data)) + bytes(4) + data)
        while True:
            message = self._receive()
            if message.get("id") == self.sent:
                result: dict[str, Any] = message["result"]
                return result

    def wait_for(self, method: str) -> None:
        while self._receive().get("method") != method:
            pass

    def _receive(self) -> dict[str, Any]:
        data, last = b"", False
        while not last:
            first, length = self.file.read(2)
            length &= 0x7F
            if length > 125:
                length = int.from_bytes(self.file.read(2 if length == 126 else 8), "big")
            data, last = data + self.file.read(length), bool(first & 0x80)
        message: dict[str, Any] = json.loads(data)
        if message.get("method") == "Tracing.dataCollected":
            self.events += message["params"]["value"]
        return message
