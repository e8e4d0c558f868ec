/* How a thread of the truth program stops: what each machine's registers hold then, in its own instructions. */
#ifndef TRUTH_STOP_H
#define TRUTH_STOP_H
#include "truth.h"

#if defined(__x86_64__)

#define RED_ZONE 1 /* what is below the stack pointer may be in use */
#define FORGET_SAVED() __asm__ volatile("" : : : "rbx", "r12", "r13", "r14", "r15", "memory")

/* Put every register of the FPU and vector units into its initial state (XRSTOR of an empty image). */
static inline void clear_vectors(void) {
    static _Alignas(64) unsigned char empty[4096];
    uint32_t a = 1, b, c = 0, d;
    __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
    if (!(c >> 27 & 1)) { /* no OSXSAVE */
        __asm__ volatile("pxor %%xmm0,%%xmm0; pxor %%xmm1,%%xmm1; pxor %%xmm2,%%xmm2; pxor %%xmm3,%%xmm3; pxor %%xmm4,%%xmm4;"
                         "pxor %%xmm5,%%xmm5; pxor %%xmm6,%%xmm6; pxor %%xmm7,%%xmm7; pxor %%xmm8,%%xmm8; pxor %%xmm9,%%xmm9;"
                         "pxor %%xmm10,%%xmm10; pxor %%xmm11,%%xmm11; pxor %%xmm12,%%xmm12; pxor %%xmm13,%%xmm13;"
                         "pxor %%xmm14,%%xmm14; pxor %%xmm15,%%xmm15" : : : "memory");
        return;
    }
    empty[24] = 0x80; /* MXCSR 0x1f80 */
    empty[25] = 0x1f;
    __asm__ volatile("xrstor %0" : : "m"(empty), "a"(0xe7), "d"(0) : "memory");
}

/* Load the hidden pointers into registers (rbx rbp r12 r13 r14 r15 r8 xmm3) and below the stack pointer, clear every other register, say "ready" if asked to, and wait for
 * ever in a system call that keeps the registers. */
static inline void stop(const hidden *in, uint64_t say) {
    clear_vectors();
    __asm__ volatile("sub $512, %%rsp\n\t"
                     "mov 56(%%rdi), %%rax; not %%rax; movq %%rax, %%xmm3\n\t"
                     "mov 64(%%rdi), %%rax; not %%rax; mov %%rax, -64(%%rsp)\n\t"
                     "mov 0(%%rdi), %%rbx; not %%rbx\n\t"
                     "mov 8(%%rdi), %%rbp; not %%rbp\n\t"
                     "mov 16(%%rdi), %%r12; not %%r12\n\t"
                     "mov 24(%%rdi), %%r13; not %%r13\n\t"
                     "mov 32(%%rdi), %%r14; not %%r14\n\t"
                     "mov 40(%%rdi), %%r15; not %%r15\n\t"
                     "mov 48(%%rdi), %%r8; not %%r8\n\t"
                     "xor %%r9d, %%r9d; xor %%r10d, %%r10d\n\t"
                     "mov %%rsi, %%rax\n\t"
                     "xor %%edi, %%edi; xor %%esi, %%esi; xor %%edx, %%edx\n\t"
                     "lock incl stopped(%%rip)\n\t"
                     "test %%eax, %%eax; jz 1f\n\t"
                     "mov $1, %%eax; mov $1, %%edi; lea ready_text(%%rip), %%rsi; mov $6, %%edx; syscall\n\t"
                     "1: mov $34, %%eax; xor %%edi, %%edi; xor %%esi, %%esi; xor %%edx, %%edx; syscall\n\t" /* pause */
                     "mov %%r8, %%rax; movq %%xmm3, %%rax; mov -64(%%rsp), %%rax\n\t" /* they are used again */
                     "jmp 1b"
                     : : "D"(in), "S"(say) : "memory", "rax", "rbx", "rcx", "rdx", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15");
    __builtin_unreachable();
}

#elif defined(__aarch64__)

#define RED_ZONE 0 /* AAPCS64: memory below the stack pointer is nobody's */
#define FORGET_SAVED() __asm__ volatile("" : : : "x19", "x20", "x21", "x22", "x23", "x24", "x25", "x26", "x27", "x28", "memory")

static inline void clear_vectors(void) {
    __asm__ volatile("movi v0.2d, #0; movi v1.2d, #0; movi v2.2d, #0; movi v3.2d, #0; movi v4.2d, #0; movi v5.2d, #0; movi v6.2d, #0;"
                     "movi v7.2d, #0; movi v8.2d, #0; movi v9.2d, #0; movi v10.2d, #0; movi v11.2d, #0; movi v12.2d, #0; movi v13.2d, #0;"
                     "movi v14.2d, #0; movi v15.2d, #0; movi v16.2d, #0; movi v17.2d, #0; movi v18.2d, #0; movi v19.2d, #0;"
                     "movi v20.2d, #0; movi v21.2d, #0; movi v22.2d, #0; movi v23.2d, #0; movi v24.2d, #0; movi v25.2d, #0;"
                     "movi v26.2d, #0; movi v27.2d, #0; movi v28.2d, #0; movi v29.2d, #0; movi v30.2d, #0; movi v31.2d, #0" : : : "memory");
}

/* Load the hidden pointers into registers (x19-x23 x29 x9 v3) and below the stack pointer, clear every other register, say "ready" if asked to, and wait for
 * ever in a system call that keeps the registers. */
static inline void stop(const hidden *in, uint64_t say) {
    clear_vectors();
    register const hidden *from __asm__("x0") = in;
    register uint64_t ready __asm__("x1") = say;
    __asm__ volatile("sub sp, sp, #512\n\t"
                     "mov x9, x1\n\t"
                     "ldr x10, [x0, #56]; mvn x10, x10; fmov d3, x10\n\t"
                     "ldr x10, [x0, #64]; mvn x10, x10; str x10, [sp, #-64]\n\t"
                     "ldp x19, x29, [x0]; mvn x19, x19; mvn x29, x29\n\t"
                     "ldp x20, x21, [x0, #16]; mvn x20, x20; mvn x21, x21\n\t"
                     "ldp x22, x23, [x0, #32]; mvn x22, x22; mvn x23, x23\n\t"
                     "ldr x24, [x0, #48]\n\t"
                     "adrp x0, stopped; add x0, x0, :lo12:stopped\n\t"
                     "2: ldaxr w1, [x0]; add w1, w1, #1; stlxr w2, w1, [x0]; cbnz w2, 2b\n\t"
                     "cbz w9, 1f\n\t"
                     "mov x0, #1; adrp x1, ready_text; add x1, x1, :lo12:ready_text; mov x2, #6; mov x8, #64; svc #0\n\t" /* write */
                     "1: mvn x9, x24\n\t"
                     "mov x5, xzr; mov x6, xzr; mov x7, xzr; mov x10, xzr; mov x11, xzr; mov x12, xzr; mov x13, xzr; mov x14, xzr\n\t"
                     "mov x15, xzr; mov x16, xzr; mov x17, xzr; mov x18, xzr; mov x24, xzr; mov x25, xzr; mov x26, xzr; mov x27, xzr\n\t"
                     "mov x28, xzr; mov x30, xzr\n\t"
                     "3: mov x0, xzr; mov x1, xzr; mov x2, xzr; mov x3, xzr; mov x4, xzr; mov x8, #73; svc #0\n\t" /* ppoll */
                     "mov x0, x9; fmov x0, d3\n\t" /* they are used again */
                     "b 3b"
                     : : "r"(from), "r"(ready) : "memory");
    __builtin_unreachable();
}

#else
#error "how a thread of this machine stops is not written yet"
#endif

#endif
