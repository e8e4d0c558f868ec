"""Name the register of each word in a core's notes, ptrace register sets and signal frames.

Layouts: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, 10.5.1 (FXSAVE) and
13.4 (XSAVE, standard format), which Linux uses in notes and signal frames, whatever format it uses
internally (arch/x86/kernel/fpu/xstate.c, 6.x, copy_xstate_to_uabi_buf). The offsets of the parts
after the AVX part depend on the processor (CPUID leaf 0xD), because Intel leaves space for MPX, and
AMD does not."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from findleaks.target.arch import NT_ARM_SVE, NT_PRFPREG, Arch
from findleaks.target.base import Thread

LEGACY = 512  # bytes of the FXSAVE part
FEATURES_AT = 464  # offset of the features (XCR0), which Linux stores in bytes that CPUs do not use
_AVX, _OPMASK, _ZMM, _ZMM16, _PKRU = 2, 5, 6, 7, 9  # bits of XCR0
_UPPER = 576  # offset of the upper halves of ymm0 to ymm15
_SVE_FLAGS = 32  # position of the flags in the second word of struct user_sve_header, in bits
_PLAIN = 32  # number of 128-bit registers in an NT_PRFPREG, on machines other than x86
# Offsets of k0-7, of the upper halves of zmm0-15, and of zmm16-31, and the end of zmm16-31.
_INTEL, _AMD = (1088, 1152, 1664, 2688), (832, 896, 1408, 2432)


@lru_cache(maxsize=16)
def xsave_words(features: int, size: int) -> tuple[str, ...]:
    """Return the register of each 8-byte word of an XSAVE image of `size` bytes, or of its
    beginning (the FXSAVE image, 512 bytes).
    "xmm3" is a word of the low 128 bits of register 3, "ymm3" of the next 128, "zmm3" of the upper
    256; "" is a word of unknown content. "zmm2 or xmm17" is a word of one of these registers."""
    names = [""] * (size // 8)

    def put(at: int, name: str, count: int) -> None:
        if at // 8 + count <= len(names):
            names[at // 8 : at // 8 + count] = [f"{other} or {name}" if other else name for other in names[at // 8 : at // 8 + count]]

    for number in range(8):
        put(32 + 16 * number, f"st{number}", 2)
    for number in range(16):
        put(160 + 16 * number, f"xmm{number}", 2)
    if size > LEGACY and features >> _AVX & 1:
        for number in range(16):
            put(_UPPER + 16 * number, f"ymm{number}", 2)
    for masks, upper, more, _ in _list_places(features, size):
        for number in range(8):
            put(masks + 8 * number, f"k{number}", 1)
        for number in range(16):
            put(upper + 32 * number, f"zmm{number}", 4)
            put(more + 64 * number, f"xmm{16 + number}", 2)
            put(more + 64 * number + 16, f"ymm{16 + number}", 2)
            put(more + 64 * number + 32, f"zmm{16 + number}", 4)
    return tuple(names)


def _list_places(features: int, size: int) -> Sequence[tuple[int, int, int, int]]:
    """Return the possible offsets of AVX-512's parts; () if they are unknown. The size of the image
    distinguishes Intel's layout from AMD's. The last part is PKRU (8 bytes) or AVX-512 itself,
    except on Intel processors with AMX, whose tiles come after both. GDB before 14 writes images of
    AMD's layout with Intel's size. An image of this size without PKRU may be such an image, because
    nearly all of Intel's processors with AVX-512 have PKRU, but virtual machines may hide it."""
    if size == _INTEL[3] and features >> _OPMASK & 7 == 7 and not features >> _OPMASK + 3:
        return _INTEL, _AMD
    if features >> _OPMASK & 7 != 7 or features >> 10:
        return (_INTEL,) if features >> _OPMASK & 7 == 7 and features >> 17 & 3 == 3 and size == 11008 else ()
    pkru = 8 if features >> _PKRU & 1 else 0
    return [places for places in (_INTEL, _AMD) if size == places[3] + pkru]


def sve_words(length: int, scalable: bool, size: int) -> tuple[str, ...]:
    """Return the register of each word of an area of `size` bytes that begins with a 16-byte
    header. The area contains the registers of arm64, of `length` bytes each, or of 16 bytes if they
    are not `scalable`. The low 16 bytes of each register are the vector register of the same
    number. These words get its name."""
    words = (length if scalable else 16) // 8
    known = min(_PLAIN, (size - 16) // (8 * words)) if words and length % 16 == 0 else 0
    names = ["", "", *(f"v{number}" for number in range(known) for _ in range(words))]
    return (*names, *[""] * (size // 8 - len(names)))


def plain_words(arch: Arch, kind: int, features: int, size: int) -> tuple[str, ...]:
    """Return the register of each word of a note of type `kind`, on a machine whose NT_PRFPREG
    begins with 128-bit registers (arm64: struct user_fpsimd_state, v0-31). "" if unknown."""
    if kind == NT_ARM_SVE and arch.vector_prefix:
        return sve_words(features & 0xFFFF, bool(features >> _SVE_FLAGS & 1), size)
    if kind == arch.thread_pointer_note:
        return tuple(arch.thread_pointer if at == arch.thread_pointer_word else "" for at in range(size // arch.word))
    known = min(_PLAIN, size // 16) if kind == NT_PRFPREG and arch.vector_prefix else 0
    names = [f"{arch.vector_prefix}{number}" for number in range(known) for _ in range(16 // arch.word)]
    return (*names, *[""] * (size // arch.word - len(names)))


@lru_cache(maxsize=64)
def note_words(arch: Arch, images: tuple[tuple[int, int, int], ...]) -> tuple[str, ...]:
    """Return the register of each word of a register set that is followed by notes. `images` has
    (type, features, size) of each note; on x86 the notes are XSAVE images. All threads share one
    tuple."""
    names = list(arch.registers)
    for kind, features, size in images:
        if kind in arch.xsave_notes:
            names += (name for name in xsave_words(features, size) for _ in range(8 // arch.word))
        else:
            names += plain_words(arch, kind, features, size)
    return tuple(names)


def vector_words(name: str, count: int, prefix: str = "") -> list[str]:
    """Return the names of the words of a vector register that a debugger shows as a whole; "" if
    unknown.
    "zmm3" has 8 words, "ymm3" 4, and "xmm3" 2. If `prefix` is "v", "v3" has 2 words, and "z3"
    begins with these words."""
    if prefix and name[:1] in (prefix, "z") and name[1:].isdigit():
        return [prefix + name[1:]] * count
    kind, number = name[:3], name[3:]
    if kind not in ("xmm", "ymm", "zmm") or not number.isdigit() or count > 8:
        return [""] * count
    return [f"{'xmm' if word < 2 else 'ymm' if word < 4 else 'zmm'}{number}" for word in range(count)]


def image_of(arch: Arch, kind: int, note: Sequence[int], size: int) -> tuple[int, int]:
    """Return (features, size) of the image in a note, which determine its layout. `note` has the
    words of the note."""
    if kind == NT_ARM_SVE and len(note) > 1:
        return note[1], size
    return (note[FEATURES_AT // arch.word] if kind in arch.xsave_notes and size > LEGACY else 0, size)


def debugger_thread(arch: Arch, tid: int, registers: dict[str, int], vectors: Iterable[tuple[str, Sequence[int]]]) -> Thread:
    """Build a Thread from the word-sized registers of a debugger, and the words of vector registers
    by name."""
    words, names = list(registers.values()), list(registers)
    for name, found in vectors:
        words += found
        names += vector_words(name, len(found), arch.vector_prefix)
    pointer = arch.pointed_to(registers.get(arch.thread_pointer, 0))
    return Thread(tid, registers, registers.get(arch.sp, 0), registers.get(arch.pc, 0), pointer, tuple(words), tuple(names))
