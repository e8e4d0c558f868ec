"""Download debug files from debuginfod servers, if the environment names such servers.

libdebuginfod is not used, because few machines without a debugger have it, and its requests cannot
be interrupted in time. The protocol, the variables and the cache are those of debuginfod(8) and
debuginfod_find_debuginfo(3), elfutils 0.190. A server that fails once is not used again."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from _thread import allocate_lock, start_new_thread
from collections.abc import Callable, Mapping
from typing import Optional

PATIENCE = 3.0  # seconds to wait for an answer, or for LEAST_BYTES of it
LEAST_BYTES = 100 << 10
MAX_BYTES = 2 << 30  # maximum number of bytes of one file
MISS_SECONDS = 600  # seconds to remember that no server has a file (cache_miss_s)
_POLL = 0.05  # seconds between two polls for an interrupt
_LATER = 5.0  # seconds after which the thread of an abandoned request ends
_PIECE = 1 << 16
_SPARE = 0.1  # fraction of the free disk space that stays free

Poll = Callable[[float], None]
"""A function that is called with the fraction done (0: unknown). It raises if the user asked to
stop."""


class Failed(Exception):
    """Raised if a server cannot be used. The text explains why."""


class Client:
    """The servers that DEBUGINFOD_URLS names. `warnings`: failures, one line each."""

    def __init__(self, environment: Optional[Mapping[str, str]] = None) -> None:
        known = os.environ if environment is None else environment
        self.servers = [url.rstrip("/") for url in known.get("DEBUGINFOD_URLS", "").split() if url.startswith(("http://", "https://"))]
        self.warnings: list[str] = []
        self._cache = _cache(known)
        self._patience = _number(known, "DEBUGINFOD_TIMEOUT") or PATIENCE
        self._most = _number(known, "DEBUGINFOD_MAXSIZE") or MAX_BYTES
        self._longest = _number(known, "DEBUGINFOD_MAXTIME") or float("inf")

    def debug_file(self, build_id: str, name: str, accept: Callable[[str], bool], poll: Poll) -> bool:
        """Get the debug file of a build-id from the cache or a server, and call `accept` with its
        path.
        `name`: the name of the module, for messages. `accept` returns whether the file matches;
        this method returns the same."""
        if not self.servers or len(build_id) < 8:
            return False
        path = os.path.join(self._cache, build_id, "debuginfo")
        known = self._is_accepted(path, accept)
        if known is not None:
            return known
        missing = True
        for server in list(self.servers):
            try:
                if self._download(f"{server}/buildid/{build_id}/debuginfo", path, accept, poll):
                    return True
            except Failed as error:
                missing = False
                self.servers.remove(server)
                self.warnings.append(f"debuginfod: {server} {error}: it is not used again, and {name} may lack names and lines")
        if missing and self.servers:
            _note_missing(path)
        return False

    def _is_accepted(self, path: str, accept: Callable[[str], bool]) -> Optional[bool]:
        """Return whether the cached file is accepted. False: the cache records that no server has
        the file. None: unknown."""
        try:
            found = os.stat(path)
        except OSError:
            return None
        if not found.st_size:
            if time.time() - found.st_mtime < self._miss_seconds():
                return False
        elif accept(path):
            return True
        try:
            os.unlink(path)
        except OSError:
            pass
        return None

    def _miss_seconds(self) -> float:
        try:
            with open(os.path.join(self._cache, "cache_miss_s"), encoding="ascii") as file:
                return float(file.read(32))
        except (OSError, ValueError):
            return MISS_SECONDS

    def _download(self, url: str, path: str, accept: Callable[[str], bool], poll: Poll) -> bool:
        """Download a file into the cache. Returns False if the server does not have it."""
        folder = os.path.dirname(path)
        try:
            os.makedirs(folder, mode=0o700, exist_ok=True)
            free = shutil.disk_usage(folder).free
            descriptor, temporary = tempfile.mkstemp(prefix="debuginfo.", dir=folder)
        except OSError as error:
            raise Failed(f"was not used, as {folder} cannot be written to ({error.strerror})") from None
        request = _Request(url, descriptor, int(min(self._most, free * (1 - _SPARE))), self._patience)
        try:
            if not self._wait(request, poll):
                return False
            if not accept(temporary):
                raise Failed("sent another file than the requested one")
            os.chmod(temporary, 0o400)
            os.replace(temporary, path)
            temporary = path
            return True
        finally:
            request.cancelled = True
            if temporary != path:
                os.unlink(temporary)

    def _wait(self, request: _Request, poll: Poll) -> bool:
        """Wait for a request. Raises Failed if it takes too long."""
        began = since = time.monotonic()
        before = 0
        request.start()
        while not request.over.acquire(timeout=_POLL):
            poll(min(request.received / request.size, 1.0) if request.size else 0.0)
            now = time.monotonic()
            if now - since > self._patience:
                if request.received - before < LEAST_BYTES:
                    what = f"sent {request.received - before:,} bytes" if request.received else "did not answer"
                    raise Failed(f"{what} in {self._patience:g} s (DEBUGINFOD_TIMEOUT sets the limit)")
                since, before = now, request.received
            if now - began > self._longest:
                raise Failed(f"took more than {self._longest:g} s (DEBUGINFOD_MAXTIME)")
        if request.error:
            raise Failed(request.error)
        return request.found


class _Request:
    """A GET request that runs in a thread of its own, because name lookup and connecting block. The
    caller can abandon the request at any time. The thread blocks all signals, so that the
    debugger's threads receive them. `over` is released when the thread ends."""

    def __init__(self, url: str, descriptor: int, most: int, patience: float) -> None:
        self._url, self._descriptor, self._most, self._patience = url, descriptor, most, patience
        self.over = allocate_lock()
        self.over.acquire()
        self.cancelled = self.found = False
        self.size = self.received = 0
        self.error = ""

    def start(self) -> None:
        """Start the thread, which finally closes the descriptor. If no thread can be started,
        `error` says so."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            start_new_thread(self._run, ())
        except RuntimeError:  # no more threads or memory
            os.close(self._descriptor)
            self.error = "was not used: no thread can be started"
            self.over.release()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _run(self) -> None:
        try:
            with open(self._descriptor, "wb", closefd=True) as file:
                self._get(file.write)
        except OSError as error:
            self.error = f"failed: {error.strerror or error}"
        except Exception as error:
            self.error = f"failed: {type(error).__name__}"
        finally:
            self.over.release()

    def _get(self, write: Callable[[bytes], int]) -> None:
        # This module is slow to import and rarely needed, so it is imported here.
        from urllib.error import HTTPError, URLError
        from urllib.request import Request, urlopen

        asked = Request(self._url, headers={"User-Agent": "findleaks", "Accept-Encoding": "identity"})
        try:
            with urlopen(asked, timeout=self._patience + _LATER) as answer:
                self.size = int(answer.headers.get("Content-Length") or 0)
                if self.size > self._most:
                    self.error = f"has a file of {self.size:,} bytes, more than the {self._most:,} allowed (DEBUGINFOD_MAXSIZE, free space)"
                    return
                while not self.cancelled:
                    piece = answer.read1(_PIECE)
                    if not piece:
                        break
                    self.received += len(piece)
                    if self.received > self._most:
                        self.error = f"sent more than the {self._most:,} bytes allowed (DEBUGINFOD_MAXSIZE, free space)"
                        return
                    write(piece)
                if self.size and self.received < self.size:
                    self.error = f"sent {self.received:,} bytes of {self.size:,}"
                self.found = not self.error
        except HTTPError as error:
            if error.code != 404:
                self.error = f"answered {error.code} {error.reason}"
        except URLError as error:
            self.error = f"cannot be reached: {getattr(error.reason, 'strerror', None) or error.reason}"


def _cache(known: Mapping[str, str]) -> str:
    """Return the directory in which debuginfod clients cache files."""
    named = known.get("DEBUGINFOD_CACHE_PATH", "")
    if named:
        return named
    home = known.get("HOME") or os.path.expanduser("~")
    old = os.path.join(home, ".debuginfod_client_cache")
    if os.path.isdir(old):
        return old
    return os.path.join(known.get("XDG_CACHE_HOME") or os.path.join(home, ".cache"), "debuginfod_client")


def _number(known: Mapping[str, str], name: str) -> float:
    """Return the number in an environment variable; 0 if there is none."""
    try:
        return max(float(known.get(name, "")), 0.0)
    except ValueError:
        return 0.0


def _note_missing(path: str) -> None:
    """Record that no server has this file. As in elfutils, the record is an empty file."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0))
    except OSError:
        pass
