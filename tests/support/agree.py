"""Checks that two targets of the same process (live, core, …) agree."""

from __future__ import annotations

from collections.abc import Mapping

from findleaks.target.base import Target

STOP_CHANGES = ("orig_rax", "rax", "rip")

SOURCE = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const char constant[] = "a constant of the program";
char *relocated = (char *)constant;
int in_data[1024] = {0x11223344};
char in_bss[1 << 20];
__thread long in_tls = 0x5151;
static pthread_barrier_t barrier;

static void *thread(void *number) {
  long *block = malloc(128);
  block[0] = 0x7700 + (long)number;
  in_tls = (long)block;
  pthread_barrier_wait(&barrier);
  /* A value that is nowhere but in registers, the ones the kernel keeps across a call. */
  register long kept asm("r12") = 0x123400000000 + (long)number * 0x10;
  asm volatile("movq %0, %%xmm15\n 1: mov $34, %%eax\n syscall\n jmp 1b" : : "r"(kept) : "rax", "rcx", "r11", "memory", "xmm15");
  return 0;
}

int main(int argc, char **argv) {
  int threads = argc > 1 ? atoi(argv[1]) : 4;
  pthread_barrier_init(&barrier, 0, threads + 1);
  for (long i = 0; i < threads; i++) {
    pthread_t id;
    if (pthread_create(&id, 0, thread, (void *)i)) return 1;
  }
  pthread_barrier_wait(&barrier);
  char *shared = mmap(0, 1 << 16, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  strcpy(shared, "shared memory");
  char *reserved = mmap(0, 1 << 26, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  char *untouched = reserved + (1 << 25); /* inside, lest it be joined to a neighbour that was touched */
  mprotect(untouched, 1 << 20, PROT_READ | PROT_WRITE);
  long *big = malloc(3 << 20);
  for (int i = 0; i < (3 << 17); i++) big[i] = i * 0x100000001L;
  printf("constant %p\nin_data %p\nin_bss %p\nin_tls %p\nshared %p\nuntouched %p\nreserved %p\nbig %p\nlocal %p\n", (void *)constant,
         (void *)in_data, (void *)in_bss, (void *)&in_tls, (void *)shared, (void *)untouched, (void *)reserved, (void *)big, (void *)&argc);
  usleep(100000);
  puts("ready");
  fflush(stdout);
  for (;;) pause();
}
"""


def parse_addresses(output: str) -> dict[str, int]:
    """Parse the addresses that the program printed."""
    pairs = (line.split() for line in output.splitlines() if line.count(" ") == 1)
    return {name: int(address, 16) for name, address in pairs}


def check_truth(target: Target, at: Mapping[str, int], threads: int) -> None:
    """Check that the target agrees with what the program printed."""
    assert target.read(at["constant"], 26) == b"a constant of the program\0"
    assert target.word(at["in_data"]) == 0x11223344
    assert target.read(at["shared"], 13) == b"shared memory"
    big = target.read(at["big"], 3 << 20)
    assert all(int.from_bytes(big[8 * i : 8 * i + 8], "little") == i * 0x100000001 for i in range(0, 3 << 17, 997))
    assert b"".join(bytes(p.data) for p in target.pieces(at["big"], at["big"] + (3 << 20))) == big
    for name in ("constant", "in_data", "in_bss"):
        symbol = target.symbol(name)
        assert symbol is not None
        assert symbol.address == at[name]
        assert target.symbolize(at[name] + 1) == symbol
    assert target.read(at["in_bss"] + (1 << 19), 64) == bytes(64), "a .bss that was never written to is zeros"
    regions = {name: next(r for r in target.regions() if address in r) for name, address in at.items() if name != "reserved"}
    assert regions["local"].name == "[stack]"
    assert regions["in_data"].writable
    assert not regions["constant"].writable
    assert regions["constant"].name.endswith("/program")
    main = next(m for m in target.modules() if m.path.endswith("/program"))
    assert main.start <= at["constant"] < at["in_bss"] + (1 << 20) <= main.end, "a module reaches to the end of its .bss"
    found = target.threads()
    assert len(found) == threads + 1
    assert found[0].tid == target.pid
    numbers = set()
    for thread in found[1:]:
        number = (thread.registers["r12"] - 0x123400000000) // 0x10
        numbers.add(number)
        assert thread.words.count(thread.registers["r12"]) >= 2, "the vector registers are among the words"
        assert target.word(thread.thread_pointer) == thread.thread_pointer, "a thread pointer points to itself (x86-64 TLS ABI)"
        block = target.word(thread.thread_pointer + at["in_tls"] - found[0].thread_pointer)
        assert target.word(block) == 0x7700 + number
        assert any(thread.sp in r and r.writable for r in target.regions())
        function = target.symbolize(thread.pc)
        assert function is not None
        assert function.name == "thread"
    assert numbers == set(range(threads))
    pause = target.symbolize(found[0].pc)
    assert pause is not None
    assert "pause" in pause.name
    malloc = target.symbol("malloc", "libc.so")
    assert malloc is not None
    assert target.symbolize(malloc.address) is not None


def writable(target: Target) -> dict[int, int]:
    """Return the end of each writable range by its start, with adjacent regions joined: targets divide the same memory into different
    regions."""
    joined: dict[int, int] = {}
    start = end = 0
    for region in target.regions():
        if not region.writable:
            continue
        if region.start != end:
            start = region.start
        end = region.end
        joined[start] = end
    return joined


def content(target: Target, start: int, end: int) -> bytes:
    """Return the bytes of a range; unreadable memory is zeros."""
    data = bytearray(end - start)
    for piece in target.pieces(start, end):
        data[piece.address - start : piece.address - start + len(piece.data)] = piece.data
    return bytes(data)


def is_rseq(address: int, one: Target, other: Target) -> bool:
    """Return whether a word belongs to a thread's struct rseq (Linux uapi/linux/rseq.h; glibc keeps it in its struct pthread). The kernel
    stores the number of the processor there whenever the thread wakes up on another processor."""
    near = any(0 <= address - t.thread_pointer < 0x1000 for t in one.threads())
    return near and all(half < 4096 for t in (one, other) for half in divmod(t.word(address), 1 << 32))


def differing_words(start: int, left: bytes, right: bytes) -> list[int]:
    """Return the addresses of the words that differ in two contents of the same range, which begins at `start`."""
    pages = [at for at in range(0, len(left), 4096) if left[at : at + 4096] != right[at : at + 4096]]
    return [start + at for page in pages for at in range(page, page + 4096, 8) if left[at : at + 8] != right[at : at + 8]]


def check_agree(one: Target, other: Target) -> None:
    """Check that two targets of a process that did nothing in between have the same writable memory with the same bytes, the same modules,
    and the same registers, except those that a stop in a system call changes."""
    assert writable(one) == writable(other)
    for start, end in writable(one).items():
        left, right = content(one, start, end), content(other, start, end)
        if left != right:
            differing = [address for address in differing_words(start, left, right) if not is_rseq(address, one, other)]
            assert not differing, f"{len(differing)} words differ, the first at {min(differing):#x}"
    assert list(one.modules()) == list(other.modules())
    for a, b in zip(one.threads(), other.threads()):
        assert a.tid == b.tid
        assert {k: v for k, v in a.registers.items() if k not in STOP_CHANGES} == {
            k: v for k, v in b.registers.items() if k not in STOP_CHANGES
        }
        assert (a.sp, a.thread_pointer) == (b.sp, b.thread_pointer)
    for name in ("malloc", "free", "main_arena", "in_data", "environ", "no_such_name"):
        assert one.symbol(name) == other.symbol(name)
