/* How a thread of the truth program stops: for each machine, the instructions that set its registers. */
#ifndef TRUTH_STOP_H
#define TRUTH_STOP_H
#include "truth.h"

#if defined(__x86_64__)

#define RED_ZONE 1 /* memory below the stack pointer may be in use */
#define FORGET_SAVED() __asm__ volatile("" : : : "rbx", "r12", "r13", "r14", "r15", "memory")

/* Set every register of the FPU and vector units to its initial state (XRSTOR of an empty image). */
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
static inline void stop(const hidden *in, unsigned say) {
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
                     "mov %%esi, %%eax\n\t"
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

#define RED_ZONE 0 /* AAPCS64: memory below the stack pointer may be overwritten at any time */
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
static inline void stop(const hidden *in, unsigned say) {
    clear_vectors();
    register const hidden *from __asm__("x0") = in;
    register unsigned long ready __asm__("x1") = say;
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

#elif defined(__i386__)

#define RED_ZONE 0
#define FORGET_SAVED() __asm__ volatile("" : : : "ebx", "esi", "edi", "memory")

static inline void clear_vectors(void) {
    __asm__ volatile("fninit; pxor %%xmm0,%%xmm0; pxor %%xmm1,%%xmm1; pxor %%xmm2,%%xmm2; pxor %%xmm3,%%xmm3;"
                     "pxor %%xmm4,%%xmm4; pxor %%xmm5,%%xmm5; pxor %%xmm6,%%xmm6; pxor %%xmm7,%%xmm7" : : : "memory");
}

/* Load the hidden pointers into registers (ebx ecx edx esi edi ebp xmm3 xmm4) and below the stack pointer, clear every other register,
 * say "ready" if asked to, and wait for ever in a system call that keeps the registers. */
static inline void stop(const hidden *in, unsigned say) {
    clear_vectors();
    __asm__ volatile("sub $512, %%esp\n\t"
                     "mov %%eax, %%edi; mov %%edx, %%esi\n\t"
                     "mov 24(%%edi), %%eax; not %%eax; movd %%eax, %%xmm3\n\t"
                     "mov 28(%%edi), %%eax; not %%eax; movd %%eax, %%xmm4\n\t"
                     "mov 32(%%edi), %%eax; not %%eax; mov %%eax, -64(%%esp)\n\t"
                     "lock incl (%%ecx)\n\t"
                     "test %%esi, %%esi; jz 1f\n\t"
                     "mov $4, %%eax; mov %%ebx, %%ecx; mov $1, %%ebx; mov $6, %%edx; int $0x80\n\t" /* write */
                     "1: mov 0(%%edi), %%ebx; not %%ebx\n\t"
                     "mov 4(%%edi), %%ecx; not %%ecx\n\t"
                     "mov 8(%%edi), %%edx; not %%edx\n\t"
                     "mov 12(%%edi), %%esi; not %%esi\n\t"
                     "mov 20(%%edi), %%ebp; not %%ebp\n\t"
                     "mov 16(%%edi), %%edi; not %%edi\n\t"
                     "2: mov $29, %%eax; int $0x80\n\t" /* pause */
                     "mov %%ebx, %%eax; movd %%xmm3, %%eax; movd %%xmm4, %%eax; jmp 2b" /* they are used again */
                     : : "a"(in), "d"(say), "c"(&stopped), "b"(ready_text) : "memory");
    __builtin_unreachable();
}

#elif defined(__arm__)

#define RED_ZONE 0 /* AAPCS: memory below the stack pointer may be overwritten at any time */
#define FORGET_SAVED() __asm__ volatile("" : : : "r4", "r5", "r6", "r8", "r9", "r10", "memory")

static inline void clear_vectors(void) {
    __asm__ volatile("mov r0, #0;vmov d0, r0, r0; vmov d1, r0, r0; vmov d2, r0, r0; vmov d3, r0, r0; vmov d4, r0, r0; vmov d5, r0, r0; vmov d6, r0, r0;"
                     "vmov d7, r0, r0; vmov d8, r0, r0; vmov d9, r0, r0; vmov d10, r0, r0; vmov d11, r0, r0; vmov d12, r0, r0; vmov d13, r0, r0; vmov d14, r0, r0; vmov d15, r0, r0" : : : "r0", "memory");
}

/* Load the hidden pointers into registers (r4-r6 r8-r11 s6) and below the stack pointer, clear every other register, say "ready" if
 * asked to, and wait for ever in a system call that keeps the registers. */
static inline void stop(const hidden *in, unsigned say) {
    clear_vectors();
    register const hidden *from __asm__("r0") = in;
    register unsigned ready __asm__("r1") = say;
    register atomic_int *counter __asm__("r2") = &stopped;
    register const char *text __asm__("r3") = ready_text;
    __asm__ volatile("sub sp, sp, #512\n\t"
                     "ldr r12, [r0, #28]; mvn r12, r12; vmov s6, r12\n\t"
                     "ldr r12, [r0, #32]; mvn r12, r12; str r12, [sp, #-64]\n\t"
                     "ldr r4, [r0]; mvn r4, r4; ldr r5, [r0, #4]; mvn r5, r5; ldr r6, [r0, #8]; mvn r6, r6\n\t"
                     "ldr r8, [r0, #12]; mvn r8, r8; ldr r9, [r0, #16]; mvn r9, r9\n\t"
                     "ldr r10, [r0, #20]; mvn r10, r10; ldr r11, [r0, #24]; mvn r11, r11\n\t"
                     "2: ldrex r0, [r2]; add r0, r0, #1; strex r12, r0, [r2]; cmp r12, #0; bne 2b\n\t"
                     "cmp r1, #0; beq 1f\n\t"
                     "mov r0, #1; mov r1, r3; mov r2, #6; mov r7, #4; svc #0\n\t" /* write */
                     "1: mov r1, #0; mov r2, #0; mov r3, #0; mov r12, #0; mov lr, #0\n\t"
                     "3: mov r0, #0; mov r7, #29; svc #0\n\t" /* pause */
                     "mov r0, r4; vmov r0, s6\n\t" /* they are used again */
                     "b 3b"
                     : : "r"(from), "r"(ready), "r"(counter), "r"(text) : "memory");
    __builtin_unreachable();
}

#elif defined(__riscv)

#define RED_ZONE 0
#define FORGET_SAVED() __asm__ volatile("" : : : "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "memory")

static inline void clear_vectors(void) {
    __asm__ volatile("fmv.d.x f0, x0; fmv.d.x f1, x0; fmv.d.x f2, x0; fmv.d.x f3, x0; fmv.d.x f4, x0; fmv.d.x f5, x0; fmv.d.x f6, x0;"
                     "fmv.d.x f7, x0; fmv.d.x f8, x0; fmv.d.x f9, x0; fmv.d.x f10, x0; fmv.d.x f11, x0; fmv.d.x f12, x0;"
                     "fmv.d.x f13, x0; fmv.d.x f14, x0; fmv.d.x f15, x0; fmv.d.x f16, x0; fmv.d.x f17, x0; fmv.d.x f18, x0;"
                     "fmv.d.x f19, x0; fmv.d.x f20, x0; fmv.d.x f21, x0; fmv.d.x f22, x0; fmv.d.x f23, x0; fmv.d.x f24, x0;"
                     "fmv.d.x f25, x0; fmv.d.x f26, x0; fmv.d.x f27, x0; fmv.d.x f28, x0; fmv.d.x f29, x0; fmv.d.x f30, x0;"
                     "fmv.d.x f31, x0" : : : "memory");
}

/* Load the hidden pointers into registers (s0-s5 t2 fa3) and below the stack pointer, clear every other register, say "ready" if asked
 * to, and wait for ever in a system call that keeps the registers. */
static inline void stop(const hidden *in, unsigned say) {
    clear_vectors();
    register const hidden *from __asm__("a0") = in;
    register unsigned long ready __asm__("a1") = say;
    register atomic_int *counter __asm__("a2") = &stopped;
    register const char *text __asm__("a3") = ready_text;
    __asm__ volatile("addi sp, sp, -512\n\t"
                     "ld t0, 56(a0); not t0, t0; fmv.d.x fa3, t0\n\t"
                     "ld t0, 64(a0); not t0, t0; sd t0, -64(sp)\n\t"
                     "ld s0, 0(a0); not s0, s0; ld s1, 8(a0); not s1, s1; ld s2, 16(a0); not s2, s2\n\t"
                     "ld s3, 24(a0); not s3, s3; ld s4, 32(a0); not s4, s4; ld s5, 40(a0); not s5, s5\n\t"
                     "ld t2, 48(a0); not t2, t2\n\t"
                     "li t0, 1; amoadd.w zero, t0, (a2)\n\t"
                     "beqz a1, 1f\n\t"
                     "li a0, 1; mv a1, a3; li a2, 6; li a7, 64; ecall\n\t" /* write */
                     "1: li t0, 0; li t1, 0; li t3, 0; li t4, 0; li t5, 0; li t6, 0; li a5, 0; li a6, 0; li ra, 0\n\t"
                     "li s6, 0; li s7, 0; li s8, 0; li s9, 0; li s10, 0; li s11, 0\n\t"
                     "3: li a0, 0; li a1, 0; li a2, 0; li a3, 0; li a4, 0; li a7, 73; ecall\n\t" /* ppoll */
                     "mv a0, t2; fmv.x.d a0, fa3\n\t" /* they are used again */
                     "j 3b"
                     : : "r"(from), "r"(ready), "r"(counter), "r"(text) : "memory");
    __builtin_unreachable();
}

#elif defined(__powerpc64__)

#define RED_ZONE 1 /* ELF V2 ABI: the protected zone of 288 bytes */
#define FORGET_SAVED() __asm__ volatile("" : : : "r14", "r15", "r16", "r17", "r18", "r19", "r20", "r21", "r22", "r23", "memory")

static inline void clear_vectors(void) {
    __asm__ volatile(".irp n, 0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,"
                     "38,39,40,41,42,43,44,45,46,47,48,49,50,51,52,53,54,55,56,57,58,59,60,61,62,63\n\t"
                     "xxlxor \\n, \\n, \\n\n\t.endr" : : : "memory");
}

/* Load the hidden pointers into registers (r14-r20 f3) and below the stack pointer, clear every other register, say "ready" if asked to,
 * and wait for ever in a system call that keeps the registers. */
static inline void stop(const hidden *in, unsigned say) {
    clear_vectors();
    register const hidden *from __asm__("r3") = in;
    register unsigned long ready __asm__("r4") = say;
    register atomic_int *counter __asm__("r5") = &stopped;
    register const char *text __asm__("r6") = ready_text;
    __asm__ volatile("addi 1, 1, -1024\n\t"
                     "ld 7, 56(3); not 7, 7; mtfprd 3, 7\n\t"
                     "ld 7, 64(3); not 7, 7; std 7, -64(1)\n\t"
                     "ld 14, 0(3); not 14, 14; ld 15, 8(3); not 15, 15; ld 16, 16(3); not 16, 16; ld 17, 24(3); not 17, 17\n\t"
                     "ld 18, 32(3); not 18, 18; ld 19, 40(3); not 19, 19; ld 20, 48(3); not 20, 20\n\t"
                     "2: lwarx 7, 0, 5; addi 7, 7, 1; stwcx. 7, 0, 5; bne- 2b\n\t"
                     "cmpdi 4, 0; beq 1f\n\t"
                     "li 3, 1; mr 4, 6; li 5, 6; li 0, 4; sc\n\t" /* write */
                     "1: li 7, 0; li 8, 0; li 9, 0; li 10, 0; li 11, 0; li 12, 0; mtlr 7; mtctr 7\n\t"
                     "li 21, 0; li 22, 0; li 23, 0; li 24, 0; li 25, 0; li 26, 0; li 27, 0; li 28, 0; li 29, 0; li 30, 0; li 31, 0\n\t"
                     "3: li 3, 0; li 4, 0; li 5, 0; li 6, 0; li 0, 29; sc\n\t" /* pause */
                     "mr 3, 14; mffprd 3, 3\n\t" /* they are used again */
                     "b 3b"
                     : : "r"(from), "r"(ready), "r"(counter), "r"(text) : "memory");
    __builtin_unreachable();
}

#elif defined(__s390x__)

#define RED_ZONE 0
#define FORGET_SAVED() __asm__ volatile("" : : : "r6", "r7", "r8", "r9", "r10", "r11", "memory")

static inline void clear_vectors(void) {
    __asm__ volatile("lzdr %f0; lzdr %f1; lzdr %f2; lzdr %f3; lzdr %f4; lzdr %f5; lzdr %f6; lzdr %f7; lzdr %f8; lzdr %f9; lzdr %f10;"
                     "lzdr %f11; lzdr %f12; lzdr %f13; lzdr %f14; lzdr %f15");
}

/* Load the hidden pointers into registers (r6-r12 f3) and below the stack pointer, clear every other register, say "ready" if asked to,
 * and wait for ever in a system call that keeps the registers. */
static inline void stop(const hidden *in, unsigned say) {
    clear_vectors();
    register const hidden *from __asm__("r2") = in;
    register unsigned long ready __asm__("r3") = say;
    register atomic_int *counter __asm__("r4") = &stopped;
    register const char *text __asm__("r5") = ready_text;
    __asm__ volatile("aghi %%r15, -512\n\t"
                     "lghi %%r0, -1\n\t"
                     "lg %%r1, 56(%%r2); xgr %%r1, %%r0; ldgr %%f3, %%r1\n\t"
                     "lg %%r1, 64(%%r2); xgr %%r1, %%r0; stg %%r1, -64(%%r15)\n\t"
                     "lmg %%r6, %%r12, 0(%%r2)\n\t"
                     "xgr %%r6, %%r0; xgr %%r7, %%r0; xgr %%r8, %%r0; xgr %%r9, %%r0; xgr %%r10, %%r0; xgr %%r11, %%r0; xgr %%r12, %%r0\n\t"
                     "2: l %%r1, 0(%%r4); lr %%r13, %%r1; ahi %%r13, 1; cs %%r1, %%r13, 0(%%r4); jne 2b\n\t"
                     "cgije %%r3, 0, 1f\n\t"
                     "lghi %%r2, 1; lgr %%r3, %%r5; lghi %%r4, 6; svc 4\n\t" /* write */
                     "1: lghi %%r0, 0; lghi %%r1, 0; lghi %%r3, 0; lghi %%r4, 0; lghi %%r5, 0; lghi %%r13, 0; lghi %%r14, 0\n\t"
                     "3: lghi %%r2, 0; svc 29\n\t" /* pause */
                     "lgr %%r2, %%r6; lgdr %%r2, %%f3\n\t" /* they are used again */
                     "j 3b"
                     : : "r"(from), "r"(ready), "r"(counter), "r"(text) : "memory");
    __builtin_unreachable();
}

#else
#error "how a thread of this machine stops is not written yet"
#endif

#endif
