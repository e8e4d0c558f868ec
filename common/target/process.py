"""A process of this machine, without access to its memory: identity, mappings, modules and their
files."""

from __future__ import annotations

import os
from typing import Optional

from findleaks.errors import TargetError
from findleaks.target import elf
from findleaks.target.arch import Arch
from findleaks.target.files import FilePlace, read_file
from findleaks.target.image_target import ImageTarget
from findleaks.target.maps import regions_of
from findleaks.target.modules import Image, find_module_file, images, mapped_files, supported_arch
from findleaks.target.notes import auxiliary, program_name
from findleaks.target.ptrace import explain_refusal, is_exiting, is_kernel_thread, state, status, tasks
from findleaks.target.reader import Source


class LocalProcess(ImageTarget):
    """A process of this machine. Subclasses read its memory.
    Raises TargetError if the process cannot be read."""

    live = True
    trackable = True

    def __init__(self, pid: int, stopped: bool) -> None:
        ImageTarget.__init__(self)
        self._pid = _checked_pid(pid, stopped)
        self.pid: Optional[int] = self._pid
        self._proc = folder_of(self._pid)
        self.arch = self._find_arch()
        self._page = self.arch.page
        self.exe_path = self.description = ""

    def _find_arch(self) -> Arch:
        try:
            head = _header(f"{self._proc}/exe")
        except PermissionError as error:
            raise TargetError(explain_refusal(self._pid, error.errno)) from None
        except (OSError, elf.ElfError):  # unreadable or gone: assume this machine's architecture
            head = _header("/proc/self/exe")
        return supported_arch(head, f"pid {self._pid}: a process").with_page(os.sysconf("SC_PAGE_SIZE"))

    def _map(self, maps: bytes) -> None:
        self._set_regions(regions_of(maps))
        if not self._regions:
            raise TargetError(f"pid {self._pid}: the process has ended")

    def _describe(self, threads: int) -> None:
        """Find the modules in the mappings, and describe the process."""
        pid = self._pid
        self._images = images(self.read, mapped_files(self._regions), self.arch.machine, self._page)
        self._modules = [image.module for image in self._images]
        self._sysroot = f"{self._proc}/root"
        try:
            self.exe_path = os.readlink(f"{self._proc}/exe")
        except OSError:
            self.exe_path = self.exe_path or status(pid).get("Name", "")
        try:
            self.called = program_name(status(pid).get("Name", ""), os.fsdecode(read_file(f"{self._proc}/cmdline")))
        except OSError:
            pass  # the process has ended
        self.description = f"process {pid} ({self.exe_path or 'unnamed'}), {threads} thread{'' if threads == 1 else 's'}"

    def thread_names(self) -> dict[int, str]:
        names = {}
        for tid in tasks(self._pid):
            try:
                names[tid] = os.fsdecode(read_file(f"/proc/{self._pid}/task/{tid}/comm").rstrip(b"\n"))
            except OSError:
                continue  # the thread has just ended
        return names

    @property
    def auxv(self) -> dict[int, int]:
        try:
            return auxiliary(self.arch, read_file(f"{self._proc}/auxv"))
        except OSError:
            return {}

    def _file(self, image: Image) -> Optional[Source]:
        """Return the mapped file itself, even if it was deleted or replaced. If this fails, return
        the file at its path, below the root folder of the process."""
        module = image.module
        region = self._region_at(module.start)
        if not module.path.startswith("/") or region is None:
            return None
        link = FilePlace(f"{self._proc}/map_files/{region.start:x}-{region.end:x}")
        # The last candidate is for a process that has ended.
        return find_module_file([link, FilePlace(module.path, self._sysroot), FilePlace(module.path)], image).file


def folder_of(pid: int) -> str:
    """Return a /proc folder through which the memory of the process can be read: the folder of a
    living thread. If the main thread has ended before the others, its own folder shows no
    memory."""
    return next((f"/proc/{tid}" for tid in (pid, *tasks(pid)) if state(pid, tid) not in "ZX"), f"/proc/{pid}")


def _checked_pid(pid: int, stopped: bool) -> int:
    """Return the process id for the id of a process or thread.
    Raises TargetError if the process cannot be read."""
    lines = status(pid) if pid > 0 else {}
    if not lines:
        raise TargetError(f"pid {pid}: there is no such process")
    pid = int(lines.get("Tgid", pid))
    if pid == os.getpid():
        raise TargetError(f"pid {pid}: findleaks cannot stop itself")
    if lines.get("State", "").startswith(("Z", "X")) and len(tasks(pid)) < 2:
        raise TargetError(f"pid {pid}: the process is a zombie; its memory is gone")
    if is_exiting(pid):
        raise TargetError(f"pid {pid}: the process is exiting; its memory is gone")
    if is_kernel_thread(pid):
        raise TargetError(f"pid {pid}: a kernel thread has no user memory")
    if not stopped and lines.get("TracerPid", "0") != "0":
        raise TargetError(explain_refusal(pid))
    return pid


def _header(path: str) -> elf.Header:
    with open(path, "rb") as file:
        return elf.header(file.read(64))
