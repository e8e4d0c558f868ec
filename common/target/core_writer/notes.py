"""Build the notes of a core, in the kernel's order and layouts, followed by findleaks' note.
Sources: Linux 6.x fs/binfmt_elf.c (fill_prstatus, fill_psinfo, fill_auxv_note, fill_files_note,
write_note_info); include/linux/elfcore.h and include/uapi/linux/elfcore.h (elf_prstatus, 336 bytes
on x86-64; elf_prpsinfo, 136)."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence

from findleaks.target.arch import NT_PRFPREG, Arch
from findleaks.target.base import Region
from findleaks.target.files import read_file
from findleaks.target.notes import FINDLEAKS, NT_AUXV, NT_FILE, NT_PRPSINFO, NT_PRSTATUS, NT_SIGINFO, NT_SNAPSHOT, RegisterNotes
from findleaks.target.ptrace import status
from findleaks.target.stop_record import StopRecord

_SIGINFO = 128  # bytes of siginfo_t
_STATES = b"RSDTZW"  # the index of a process's state is pr_state
# Name of anonymous shared memory that /proc/PID/maps shows differently
_SHARED = "/dev/zero (deleted)"


def note(owner: bytes, kind: int, desc: bytes) -> bytes:
    """Build an Elf64_Nhdr with owner and contents, each padded to 4 bytes."""
    owner += b"\0"
    return struct.pack("<3I", len(owner), len(desc), kind) + owner + bytes(-len(owner) % 4) + desc + bytes(-len(desc) % 4)


def notes(arch: Arch, record: StopRecord, regions: Sequence[Region], auxv: Mapping[int, int], pid: int, own: bytes) -> bytes:
    """Build all notes. `own` is the contents of findleaks' note."""
    parts: list[bytes] = []
    first = [
        note(b"CORE", NT_PRPSINFO, _prpsinfo(record, pid)),
        note(b"CORE", NT_SIGINFO, bytes(_SIGINFO)),  # no signal
        note(b"CORE", NT_AUXV, _auxv(arch, auxv)),
        note(b"CORE", NT_FILE, _files(arch, record.maps, regions)),
    ]
    for registers in record.registers or [RegisterNotes(pid, 0, bytes(len(arch.registers) * arch.word), ())]:
        parts.append(note(b"CORE", NT_PRSTATUS, _prstatus(arch, record, registers)))
        parts += first
        first = []
        parts += [note(b"CORE" if kind == NT_PRFPREG else b"LINUX", kind, data) for kind, data in registers.extra]
    parts.append(note(FINDLEAKS, NT_SNAPSHOT, own))
    return b"".join(parts)


def _prstatus(arch: Arch, record: StopRecord, one: RegisterNotes) -> bytes:
    """Build elf_prstatus: pr_info (signal, code, errno), pr_cursig, pr_sigpend, pr_sighold, pr_pid,
    pr_ppid, pr_pgrp, pr_sid, four times of two words each, pr_reg, pr_fpvalid."""
    desc = bytearray(arch.prstatus_registers + len(arch.registers) * arch.word + arch.word)
    ids = (one.tid, *(record.stat_field(number) for number in (4, 5, 6)))
    struct.pack_into("<3ih", desc, 0, one.signal, 0, 0, one.signal)
    struct.pack_into("<4i", desc, arch.prstatus_tid, *ids)
    desc[arch.prstatus_registers : arch.prstatus_registers + len(one.general)] = one.general
    struct.pack_into("<i", desc, len(desc) - arch.word, any(kind == NT_PRFPREG for kind, _ in one.extra))
    return bytes(desc)


def _prpsinfo(record: StopRecord, pid: int) -> bytes:
    """Build elf_prpsinfo: pr_state, pr_sname, pr_zomb, pr_nice, pr_flag, pr_uid, pr_gid, pr_pid,
    pr_ppid, pr_pgrp, pr_sid, pr_fname, pr_psargs."""
    name = record.stat.partition(b"(")[2].rpartition(b")")[0]
    letter = record.stat.rpartition(b")")[2].split()[:1] or [b"S"]
    # "t" means that findleaks stopped the process; before that, it slept or ran.
    state = letter[0] if letter[0] in (b"D", b"T", b"Z") else b"S"
    owner = status(pid)
    uid, gid = (int((owner.get(key, "").split() or ["0"])[0]) & 0xFFFFFFFF for key in ("Uid", "Gid"))
    try:
        words = read_file(f"{record.proc}/cmdline").replace(b"\0", b" ").rstrip(b" ")
    except OSError:
        words = b""
    nice = max(-128, min(127, record.stat_field(19)))
    flags = record.stat_field(9) & 0xFFFFFFFFFFFFFFFF
    numbers = (uid, gid, pid, *(record.stat_field(number) for number in (4, 5, 6)))
    head = struct.pack("<BcBb4xQ2I4i", _STATES.find(state), state, state == b"Z", nice, flags, *numbers)
    return head + struct.pack("16s80s", name[:15], (words or name)[:79])


def _auxv(arch: Arch, auxv: Mapping[int, int]) -> bytes:
    words = [word for pair in auxv.items() for word in pair]
    return struct.pack(f"{arch.word_format[0]}{len(words) + 2}{arch.word_format[1]}", *words, 0, 0)


def _files(arch: Arch, maps: bytes, regions: Sequence[Region]) -> bytes:
    """Build NT_FILE: count, page size, {start, end, offset in pages} of each file, then the
    paths."""
    with_file = _of_files(maps)
    rows = [region for region in regions if region.start in with_file]
    paths = [region.name if region.name.startswith(("/", "anon_inode:")) else _SHARED for region in rows]
    words = [len(rows), arch.page]
    for region in rows:
        words += (region.start, region.end, region.file_offset // arch.page)
    desc = struct.pack(f"{arch.word_format[0]}{len(words)}{arch.word_format[1]}", *words)
    return desc + b"".join(os.fsencode(path) + b"\0" for path in paths)


def _of_files(maps: bytes) -> set[int]:
    """Return the starts of the mappings that have an inode: files, including shared memory."""
    found = set()
    for line in maps.split(b"\n"):
        fields = line.split(None, 5)
        if len(fields) > 4 and (fields[3:5] != [b"00:00", b"0"] or (fields[5:6] and fields[5].startswith(b"/"))):
            found.add(int(fields[0].partition(b"-")[0], 16))
    return found
