"""Two redis servers that get the same commands in alternating slices. Other work on the machine, or a virtual machine's neighbours, slow
both, so that the ratio is not affected. If one server is measured twice, a second apart, the results differ by a tenth."""

from __future__ import annotations

import itertools
import os
import random
import socket
import statistics
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

KEYS, VALUE, CLIENTS, BATCHES, SLICE = 100_000, b"x" * 100, 20, 2000, 500
END = b"END\r\n"


class Slices(NamedTuple):
    ratio: float  # median of the second server's time divided by the first one's
    nanoseconds: float  # per command of the first server


class RedisPair:
    """`pipelined`: commands that each of CLIENTS sends at a time. The servers share a processor; the caller has another one."""

    def __init__(self, folder: Path, pipelined: int) -> None:
        self._random = random.Random(1)
        self._batches = [self._batch(pipelined) for _ in range(BATCHES)]
        self._commands = pipelined + 1
        self.servers, self._clients = [], []
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        for _ in range(2):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                port = probe.getsockname()[1]
            command = ["redis-server", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(folder)]
            self.servers.append(subprocess.Popen(["taskset", "-c", "0", *command], stdout=subprocess.DEVNULL))
            self._clients.append([connect(port) for _ in range(CLIENTS)])

    def close(self) -> None:
        for client in itertools.chain.from_iterable(self._clients):
            client.close()
        for server in self.servers:
            server.kill()
            server.wait()

    def _batch(self, commands: int) -> bytes:
        """Return commands. The reply to the last one is END; no other reply contains this text."""
        choose, number = self._random.choice, self._random.randrange
        made = []
        for _ in range(commands):
            key = b"%012d" % number(KEYS)
            queue, table = b"list:" + key[-3:], b"hash:" + key[-4:]
            made.append(
                choose(
                    [
                        (b"SET", key, VALUE),
                        (b"GET", key),
                        (b"LPUSH", queue, VALUE),
                        (b"LPOP", queue),
                        (b"HSET", table, key[:8], VALUE),
                    ]
                )
            )
        return b"".join(map(encode, [*made, (b"ECHO", END[:-2])]))

    def measure(self, seconds: float) -> Slices:
        end, first, commands = time.monotonic() + seconds, 0, 0
        ratios: list[float] = []
        while time.monotonic() < end:
            batches = self._random.sample(self._batches, SLICE)
            order = (0, 1) if len(ratios) % 2 else (1, 0)
            took = {which: self._slice(which, batches) for which in order}
            ratios.append(took[1] / took[0])
            first += took[0]
            commands += len(batches) * self._commands
        return Slices(statistics.median(ratios), first / commands)

    def _slice(self, which: int, batches: list[bytes]) -> int:
        """Return the nanoseconds of the server's processor time."""
        pid, clients = self.servers[which].pid, self._clients[which]
        before = spent(pid)
        for at in range(0, len(batches), len(clients)):
            for client, batch in zip(clients, batches[at:]):
                client.sendall(batch)
            for client in clients:
                until_end(client)
        return spent(pid) - before


def encode(command: tuple[bytes, ...]) -> bytes:
    return b"*%d\r\n" % len(command) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in command)


def until_end(client: socket.socket) -> None:
    last = b""
    while not last.endswith(END):
        data = client.recv(1 << 16)
        if not data:
            raise ConnectionError("redis is gone")
        last = (last + data)[-len(END) :]


def connect(port: int) -> socket.socket:
    """Connect to a server that is starting."""
    limit = time.monotonic() + 60
    while True:
        try:
            client = socket.create_connection(("127.0.0.1", port))
            client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return client
        except ConnectionRefusedError:
            if time.monotonic() > limit:
                raise
            time.sleep(0.05)


def spent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/task/{pid}/schedstat").read_text().split()[0])
