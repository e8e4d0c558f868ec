"""Decode the notes of a core: threads, registers, mapped files, auxiliary vector, process name.
pyelftools is not used, because it does not decode NT_PRSTATUS, NT_AUXV and NT_SIGINFO.
Layouts: Linux 6.x include/linux/elfcore.h (elf_prstatus, elf_prpsinfo), fs/binfmt_elf.c
(fill_files_note: NT_FILE)."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Optional

from findleaks.errors import UnreadableMemory
from findleaks.target import tags
from findleaks.target.arch import AARCH64, X86_64, Arch
from findleaks.target.base import MappedMemory, Thread, order_threads
from findleaks.target.elf import Note, text
from findleaks.target.register_words import image_of, note_words
from findleaks.value_classes import NamedTuple

NT_PRSTATUS, NT_PRPSINFO, NT_AUXV, NT_FILE, NT_SIGINFO = 1, 3, 6, 0x46494C45, 0x53494749
FINDLEAKS, NT_SNAPSHOT = b"findleaks", 0x464C4B53  # owner and type: see snapshot_note.py
AT_PHDR, AT_PAGESZ, AT_BASE, AT_ENTRY, AT_RANDOM, AT_EXECFN, AT_SYSINFO_EHDR = 3, 6, 7, 9, 25, 31, 33


FAULTS = (4, 7, 8, 11, 31)
"""SIGILL, SIGBUS, SIGFPE, SIGSEGV, SIGSYS. If the thread itself caused the signal, si_code is above
0."""

SIGTRAP, SIGABRT, SIGBUS, SIGSEGV, SIGSYS = 5, 6, 7, 11, 31
SI_USER, SI_QUEUE, SI_TKILL, SI_KERNEL = 0, -1, -6, 128
_SYS_SECCOMP = 1  # si_code of a SIGSYS: a seccomp filter refused a system call
_INT3 = b"\xcc"  # of x86-64; the pc is after it
_BRK, _BRK_MASK = 0xD4200000, 0xFFE0001F  # brk #imm16 of AArch64; the pc is at it
CURRENT_SIGNAL = 12  # offset of elf_prstatus.pr_cursig, a short after elf_siginfo


class Mapping(NamedTuple):
    """A mapped file, from NT_FILE or /proc/PID/maps; `offset` in bytes."""

    start: int
    end: int
    offset: int
    path: str


class RegisterNotes(NamedTuple):
    """Registers of a thread, as in the notes of a core."""

    tid: int
    signal: int  # signal that the thread was about to receive; 0: none
    general: bytes  # elf_gregset_t
    extra: Sequence[tuple[int, bytes]]  # (type, contents) of the notes with other registers


class Process(NamedTuple):
    """Contents of the notes of a core. `problems` describe invalid parts."""

    pid: Optional[int]
    name: str  # the kernel's 15-character name
    threads: list[Thread]
    files: list[Mapping]
    auxv: dict[int, int]
    problems: list[str]
    unit: int = 0  # page size in NT_FILE: the system's, or 1 in cores by GDB; 0: no note
    crashed: int = 0  # id of the thread that ended the process by a fault or abort()
    snapshot: Optional[memoryview] = None  # findleaks' own note
    called: str = ""  # see Target.called
    signal: int = 0  # signal that the dumping (first) thread was about to receive; 0: none
    tagged: bool = False  # the process may use pointers with tags
    fault_address: Optional[int] = None  # address that `crashed` accessed; None: none, or not known
    fault_code: int = 0  # si_code of the signal of `crashed`; 0: none, or not known
    sender: int = 0  # see Target.sender
    refused_call: int = -1  # see Target.refused_call
    first_thread: int = 0  # see Target.first_thread


def thread(arch: Arch, tid: int, registers: bytes, extra: Iterable[tuple[int, bytes]]) -> Thread:
    """Build a Thread from elf_gregset_t and the extra register notes (NT_PRFPREG, NT_X86_XSTATE …),
    given as (type, contents)."""
    values = arch.unpack(registers)
    named = dict(zip(arch.registers, values))
    words = [value if name else 0 for name, value in zip(arch.registers, values)]
    images = []
    for kind, note in extra:
        unpacked = arch.unpack(note)
        if kind == arch.thread_pointer_note:
            named.update(zip((arch.thread_pointer,), unpacked[arch.thread_pointer_word :]))
        words += unpacked
        images.append((kind, *image_of(arch, kind, unpacked, len(note))))
    names = note_words(arch, tuple(images)) if len(values) == len(arch.registers) else ()
    pointer = arch.pointed_to(named.get(arch.thread_pointer, 0))
    return Thread(tid, named, named.get(arch.sp, 0), named.get(arch.pc, 0), pointer, tuple(words), names)


class _Problems(list[str]):
    """A list that keeps the first few problems and only counts further ones, because a core may
    have millions."""

    most, more = 8, 0

    def append(self, problem: str) -> None:
        if len(self) < self.most:
            super().append(problem)
        else:
            self.more += 1


def parse_notes(arch: Arch, notes: Iterable[Note]) -> Process:
    """Decode a core's notes. A note with registers belongs to the thread of the preceding
    NT_PRSTATUS note."""
    reader = _NoteReader(arch)
    for note in notes:
        reader.read(note)
    return reader.process()


class _NoteReader:
    """Collects what the notes of a core say, in the order of the notes."""

    def __init__(self, arch: Arch) -> None:
        self._arch, self._order = arch, arch.word_format[0]
        self._problems = _Problems()
        self._threads: list[tuple[int, bytes, list[tuple[int, bytes]]]] = []
        """Number, elf_gregset_t and other registers of each thread. A thread that occurs again has
        no registers: its notes are ignored."""
        self._tids: set[int] = set()
        self._says_cause = False  # the core has an NT_SIGINFO note
        self._of = Process(None, "", [], [], {}, self._problems)

    def read(self, note: Note) -> None:
        arch, desc = self._arch, note.desc
        if note.name == b"CORE" and note.type == NT_PRSTATUS:
            self._begin_thread(desc)
        elif note.name in (b"CORE", b"LINUX") and note.type in arch.register_notes and self._threads:
            self._threads[-1][2].append((note.type, bytes(desc)))
        elif note.name == b"LINUX" and note.type == arch.tag_note:
            is_tagged = bool(sum(arch.unpack(bytes(desc[: arch.word]))) & tags.ENABLED)
            self._of = self._of._replace(tagged=self._of.tagged or is_tagged)
        elif note.name == b"CORE" and note.type == NT_SIGINFO:
            self._says_cause = True
            if self._threads and not self._of.crashed:
                self._read_cause(desc)
        elif note.name == b"CORE" and note.type == NT_PRPSINFO:
            pid, name, words = _psinfo(self._order, desc)
            self._of = self._of._replace(pid=pid, name=name, called=program_name(name, words))
        elif note.name == b"CORE" and note.type == NT_AUXV:
            self._of = self._of._replace(auxv=auxiliary(arch, bytes(desc)))
        elif note.name == b"CORE" and note.type == NT_FILE:
            files, unit = _files(arch, desc, self._problems)
            self._of = self._of._replace(files=files, unit=unit)
        elif note.name == FINDLEAKS and note.type == NT_SNAPSHOT:
            self._of = self._of._replace(snapshot=desc)

    def process(self) -> Process:
        """Return the process when all notes are read."""
        if self._problems.more:
            self._problems.extend([f"{self._problems.more:,} more invalid notes"])
        threads = [thread(self._arch, tid, registers, extra) for tid, registers, extra in self._threads if registers]
        pid = threads[0].tid if self._of.pid is None and threads else self._of.pid
        threads = order_threads(threads, pid)
        # The kernel begins with the thread that got the signal.
        first = self._threads[0][0] if self._threads and not self._says_cause else 0
        return self._of._replace(pid=pid, threads=threads, first_thread=first)

    def _begin_thread(self, desc: memoryview) -> None:
        arch = self._arch
        end = arch.prstatus_registers + len(arch.registers) * arch.word
        if len(desc) < end:
            self._problems.append(f"a thread's NT_PRSTATUS note has {len(desc)} bytes instead of {end} or more; the thread is missing")
            return
        (tid,) = struct.unpack_from(self._order + "i", desc, arch.prstatus_tid)
        if tid in self._tids:
            self._problems.append(f"thread {tid} occurs twice; the second is ignored")
            self._threads.append((tid, b"", []))
            return
        self._tids.add(tid)
        if not self._threads:
            (signal,) = struct.unpack_from(self._order + "h", desc, CURRENT_SIGNAL)
            self._of = self._of._replace(signal=signal)
        self._threads.append((tid, bytes(desc[arch.prstatus_registers : end]), []))

    def _read_cause(self, info: memoryview) -> None:
        """Read siginfo_t of the last thread."""
        sender = sender_of(self._arch, info)
        self._of = self._of._replace(sender=sender, refused_call=refused_call(self._arch, info))
        if _own_fault(self._order, info, bool(sender) and sender == self._of.pid):
            code = struct.unpack_from(self._order + "3i", info)[2]
            address = fault_address(self._arch, info)
            self._of = self._of._replace(crashed=self._threads[-1][0], fault_address=address, fault_code=code)


def _own_fault(order: str, info: memoryview, is_own: bool) -> bool:
    """Return whether siginfo_t reports an act of the process itself: a fault, or abort() or
    raise(), which send a signal to their own thread. After `kill`, si_code is 0. Handlers of
    faults, such as Python's faulthandler, raise the signal again, or call `kill` with the number of
    their own process (`is_own`). A SIGTRAP may come from a breakpoint of a debugger, too;
    crashed_thread() excludes it.
    Layout: Linux include/uapi/asm-generic/siginfo.h (si_signo, si_errno, si_code)."""
    if len(info) < 12:
        return False
    number, _, code = struct.unpack_from(order + "3i", info)
    is_sent = (number in (*FAULTS, SIGABRT) and code == SI_TKILL) or (number in FAULTS and code == SI_USER and is_own)
    return is_sent or (number in (*FAULTS, SIGTRAP) and code > 0)


def crashed_thread(target: MappedMemory, process: Process) -> int:
    """Return the number of the thread that ended the process by its own fault; 0 if there is none.

    A core that a debugger wrote at a breakpoint has the same signal, SIGTRAP, as the core of a
    process that ended at a trap instruction. But debuggers set the pc back to the start of the
    breakpoint, and write the original instruction to the core."""
    if process.signal != SIGTRAP or not process.crashed:
        return process.crashed
    pc = next((thread.pc for thread in process.threads if thread.tid == process.crashed), 0)
    try:
        if target.arch.name == X86_64.name:
            return process.crashed if target.read(pc - 1, 1) == _INT3 else 0
        if target.arch.name == AARCH64.name:
            return process.crashed if int.from_bytes(target.read(pc, 4), "little") & _BRK_MASK == _BRK else 0
    except UnreadableMemory:
        pass
    return 0


def fault_address(arch: Arch, info: memoryview) -> Optional[int]:
    """Return si_addr of a SIGSEGV or SIGBUS, which follows si_code at the alignment of a pointer.
    None if the processor reported no address (si_code SI_KERNEL), as for addresses that are not
    canonical, or if the program raised the signal."""
    number, _, code = struct.unpack_from(arch.word_format[0] + "3i", info)
    at = -(-12 // arch.word) * arch.word
    if number not in (SIGSEGV, SIGBUS) or code <= 0 or code == SI_KERNEL or len(info) < at + arch.word:
        return None
    return arch.unpack(bytes(info[at : at + arch.word]))[0]


def sender_of(arch: Arch, info: memoryview) -> int:
    """Return si_pid, the number of the process that sent a signal; 0 if no process sent it, and -1
    if the process has no number, because it is outside of the PID namespace. si_pid follows si_code
    like si_addr."""
    at = -(-12 // arch.word) * arch.word
    if len(info) < at + 4:
        return 0
    code, pid = struct.unpack_from(arch.word_format[0] + "i", info, 8)[0], struct.unpack_from(arch.word_format[0] + "i", info, at)[0]
    return (pid if pid > 0 else -1) if code in (SI_USER, SI_QUEUE, SI_TKILL) else 0


def refused_call(arch: Arch, info: memoryview) -> int:
    """Return si_syscall of a SIGSYS, the number of the system call that a seccomp filter refused;
    -1 if there is none. It follows si_call_addr, a pointer."""
    at = -(-12 // arch.word) * arch.word + arch.word
    if len(info) < at + 4:
        return -1
    number, _, code = struct.unpack_from(arch.word_format[0] + "3i", info)
    return max(struct.unpack_from(arch.word_format[0] + "i", info, at)[0], -1) if number == SIGSYS and code == _SYS_SECCOMP else -1


def auxiliary(arch: Arch, data: bytes) -> dict[int, int]:
    words = arch.unpack(data)
    vector: dict[int, int] = {}
    for key, value in zip(words[::2], words[1::2]):
        if key == 0:
            break
        vector[key] = value
    return vector


def program_name(name: str, words: str) -> str:
    """Return the name by which a program was started; "" if it is unclear. This may not be the name
    of the program's file. For example, "redis-server" may be a link to the file redis-check-rdb.
    `name` is the kernel's 15-character name, and `words` the command line, or the title that
    replaced it ("nginx: worker process"). If they disagree, the name is unclear. This happens for
    scripts, and for threads that renamed themselves."""
    first = words.partition("\0")[0].split(" ")[0].rpartition("/")[2].removesuffix(":").removeprefix("-")
    return first if first and first[:15] == name else ""


def _psinfo(order: str, desc: memoryview) -> tuple[Optional[int], str, str]:
    # elf_prpsinfo: 136 bytes (64-bit), 124 (32-bit, 16-bit user ids: i386, ARM), 128 (32-bit ids)
    at = {136: 24, 124: 12, 128: 16}.get(len(desc))
    if at is None:
        return None, "", ""
    (pid,) = struct.unpack_from(order + "i", desc, at)
    return pid if pid > 0 else None, text(desc[at + 16 : at + 32], 0), text(desc[at + 32 : at + 112], 0)


def _files(arch: Arch, desc: memoryview, problems: list[str]) -> tuple[list[Mapping], int]:
    """Decode NT_FILE: return the mapped files, and the page size (0 if the note is cut off).
    Layout: count, page size, then {start, end, offset in pages} of each file, then the
    NUL-terminated paths. The page size is 4096 in cores by the kernel, 1 in those by GDB; the
    offset in bytes is the product."""
    word, form = arch.word, arch.word_format
    if len(desc) < 2 * word:
        problems.append("the list of mapped files is cut off; no modules are known")
        return [], 0
    count, unit = struct.unpack_from(form[0] + 2 * form[1], desc, 0)
    fits = (len(desc) - 2 * word) // (3 * word + 1)
    page = unit if 0 < unit <= 1 << 20 else arch.page
    if count > fits or page != unit:
        problems.append("the list of mapped files is corrupt; modules may be missing")
        count = min(count, fits)
    rows = struct.iter_unpack(form[0] + 3 * form[1], desc[2 * word : (2 + 3 * count) * word])
    names = bytes(desc[(2 + 3 * count) * word :]).split(b"\0", count)
    found: list[Mapping] = []
    overlaps = 0
    for (start, end, offset), path in sorted(zip(rows, names)):
        if found and start < found[-1].end:
            overlaps += 1
        elif start < end:
            found.append(Mapping(start, end, offset * page, path.decode("utf-8", "surrogateescape")))
    if overlaps:
        problems.append(f"{overlaps:,} of the mapped files overlap others, and are ignored")
    return found, unit
