"""A process of this machine, without its memory: identity, mappings, modules and their files."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Optional

from findleaks.errors import TargetError
from findleaks.target import elf
from findleaks.target.arch import ARCHES, Arch, arch_of
from findleaks.target.base import Module, Range, Region
from findleaks.target.files import Place
from findleaks.target.maps import regions_of
from findleaks.target.modules import Image, check, debug_data, images, tables
from findleaks.target.notes import Mapping, auxiliary
from findleaks.target.ptrace import refusal, state, status, tasks
from findleaks.target.reader import Closing, Source
from findleaks.target.symbols import Symbolic


class LocalProcess(Symbolic, Closing):
    """A process by pid; subclasses read its memory. TargetError if that is not possible."""

    live = True
    path = ""
    truncated = False

    def __init__(self, pid: int, stopped: bool) -> None:
        """`stopped`: the caller holds it stopped."""
        Symbolic.__init__(self)
        self.pid: Optional[int] = pid
        self._pid = pid = self._checked_pid(pid, stopped)
        self.pid = pid
        self.warnings: list[str] = []
        self.unread: list[Range] = []
        self._proc = folder_of(pid)
        self.arch = self._find_arch()
        self._page = self.arch.page
        self._regions: list[Region] = []
        self._images: list[Image] = []
        self._modules: list[Module] = []
        self.exe_path = self.description = ""

    def read(self, address: int, size: int) -> bytes:
        """Exactly `size` bytes, or UnreadableMemory; never short."""
        raise NotImplementedError

    def _checked_pid(self, pid: int, stopped: bool) -> int:
        """The process id, also for a thread's id; TargetError if it cannot be read."""
        lines = status(pid) if pid > 0 else {}
        if not lines:
            raise TargetError(f"pid {pid}: there is no such process")
        pid = int(lines.get("Tgid", pid))
        if pid == os.getpid():
            raise TargetError(f"pid {pid}: that is findleaks itself, which cannot stop itself")
        if lines.get("State", "").startswith(("Z", "X")) and len(tasks(pid)) < 2:
            raise TargetError(f"pid {pid}: the process has ended and waits for its parent (zombie): its memory is gone")
        if "VmSize" not in lines and not lines.get("State", "").startswith(("Z", "X")):
            raise TargetError(f"pid {pid}: this is a kernel thread, which has no memory of its own")
        if not stopped and lines.get("TracerPid", "0") != "0":
            raise TargetError(refusal(pid, errno.EPERM))
        return pid

    def _find_arch(self) -> Arch:
        try:
            with open(f"{self._proc}/exe", "rb") as file:
                head = elf.header(file.read(64))
        except PermissionError as error:
            raise TargetError(refusal(self._pid, error.errno or errno.EPERM)) from None
        except (OSError, elf.ElfError):  # unreadable or gone: assume this machine's architecture
            return ARCHES[0]
        arch = arch_of(head.machine, head.bits, head.byteorder)
        if arch is None:
            known = ", ".join(a.name for a in ARCHES)
            raise TargetError(f"pid {self._pid}: a process of {head.machine_name} ({head.bits}-bit); only {known} is supported for now")
        return arch

    def _map(self, maps: bytes) -> None:
        """Record the mappings from the text of /proc/PID/maps."""
        self._regions = regions_of(maps)
        self._region_starts = [r.start for r in self._regions]
        if not self._regions:
            raise TargetError(f"pid {self._pid}: the process has ended")
        self._mappings = [Mapping(r.start, r.end, r.file_offset, r.name) for r in self._regions]

    def _describe(self, threads: int) -> None:
        """Find the modules in the mappings, and describe the process."""
        pid = self._pid
        files = [m for m in self._mappings if m.path.startswith("/") or m.path == "[vdso]"]
        self._images = images(self.read, files, self.arch.machine, self._page)
        self._modules = [found.module for found in self._images]
        try:
            self.exe_path = os.readlink(f"{self._proc}/exe")
        except OSError:
            self.exe_path = self.exe_path or status(pid).get("Name", "")
        self.description = f"process {pid} ({self.exe_path or 'unnamed'}), {threads} thread{'' if threads == 1 else 's'}"

    def regions(self) -> Sequence[Region]:
        return self._regions

    def modules(self) -> Sequence[Module]:
        return self._modules

    def thread_names(self) -> dict[int, str]:
        """See Target."""
        names = {}
        for tid in tasks(self._pid):
            try:
                with open(f"/proc/{self._pid}/task/{tid}/comm", "rb") as file:
                    names[tid] = os.fsdecode(file.read().rstrip(b"\n"))
            except OSError:
                continue  # the thread has just ended
        return names

    @property
    def auxv(self) -> dict[int, int]:
        """The auxiliary vector by AT_ type; {} if it cannot be read."""
        return self._auxiliary()

    def _auxiliary(self) -> dict[int, int]:
        try:
            with open(f"{self._proc}/auxv", "rb") as file:
                return auxiliary(self.arch, file.read())
        except OSError:
            return {}

    def symbol_tables(self, module: Module) -> Sequence[elf.Table]:
        for loaded in self._images:
            if loaded.module.start == module.start:
                return self._tables(loaded)
        return []

    def debug_data(self, module: Module) -> Sequence[elf.Buffer]:
        root = f"{self._proc}/root"
        source = next((self._file(loaded) for loaded in self._images if loaded.module.start == module.start), None)
        return debug_data(source, module.build_id, root)

    def _file(self, loaded: Image) -> Optional[Source]:
        """The mapped file itself, even if deleted or replaced since.

        Else the file at its path, in the process's root folder.
        """
        module = loaded.module
        mapping = next((m for m in self._mappings if m.start == module.start), None)
        if not module.path.startswith("/") or mapping is None:
            return None
        link = Place(f"{self._proc}/map_files/{mapping.start:x}-{mapping.end:x}")
        # The second is for a process that has ended.
        named = [Place(module.path, f"{self._proc}/root"), Place(module.path)]
        return check([link, *named], loaded).file

    def _tables(self, loaded: Image) -> Sequence[elf.Table]:
        module, root = loaded.module, f"{self._proc}/root"
        found = tables(self._file(loaded), module.build_id, root) or tables(None, module.build_id, "")
        if not found and loaded.head is not None:
            table = elf.table_of_image(self.read, loaded.head, loaded.segments, module.bias)
            found = [table] if table is not None else []
        return found


def folder_of(pid: int) -> str:
    """The folder under /proc by which the process's memory can be read.

    That is a living thread's: a main thread that ended before the others has no memory any more.
    """
    return next((f"/proc/{tid}" for tid in (pid, *tasks(pid)) if state(pid, tid) not in "ZX"), f"/proc/{pid}")
