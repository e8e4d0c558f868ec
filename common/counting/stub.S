# The stub: code that `count --inject` puts in front of a function, x86-64. Its bytes are in
# common/counting/generated/stub.py, made from this file by `python tools/assemble_stubs.py`; the layout of
# the table is in common/injection/stub/table.py.
#
# It walks the stack (stack_walk.S), and counts the call at the node of the last frame. In addition to
# the memory that the walk reads, it reads (in V8) an isolate that the rule server has confirmed. It
# makes no system call, takes no lock, and uses 700 bytes of stack below the red zone. It changes only
# general registers, and restores all of them.

#include "stack_walk.S"

# Offsets in the table, in addition to those of stack_walk.S, and another bit of keys.
        .set LIMIT, 0x08
        .set SCOPE, 0x50
        .set FROM, 0x58
        .set LEVEL, 0x60
        .set BASELINE, 0x68
        .set COUNTS, 0x70                       # for each node, the calls and the broken stacks that this process counted
        .set COUNTED, 0x1080                    # the events that this process counted
        .set UNSURE, 0x2010
        .set ISOLATE, 61

        .macro enter
        lea     rsp, [rsp - 128]
        push    rax
        lahf
        seto    al
        push    rax
        push    rbx
        push    rcx
        push    rdx
        push    rsi
        push    rdi
        push    rbp
        push    r8
        push    r9
        push    r10
        push    r11
        push    r12
        push    r13
        push    r14
        push    r15
        .byte   0x4c, 0x8d, 0x05, 0, 0, 0, 0    # lea r8, [rip + the table]
        .byte   0x49, 0xbb, 0, 0, 0, 0, 0, 0, 0, 0  # movabs r11, the function's key, or the number to add to the depth
        cmp     qword ptr [r8 + ENABLED], 0
        .endm

        .macro leave_it
        pop     r15
        pop     r14
        pop     r13
        pop     r12
        pop     r11
        pop     r10
        pop     r9
        pop     r8
        pop     rbp
        pop     rdi
        pop     rsi
        pop     rdx
        pop     rcx
        pop     rbx
        pop     rax
        add     al, 127                         # sets the overflow flag again
        sahf
        pop     rax
        lea     rsp, [rsp + 128]
        .endm

        .globl  count_begin, count_end, step_begin, step_end
count_begin:
        enter
        je      out
        lea     r14, [rsp + 256]                # the stack pointer at entry
        mov     r9, r14
        mov     r10, rbp
        mov     ebx, 1
        lock xadd [r8 + COUNTED], rbx
        cmp     qword ptr [r8 + PARENT], 0
        je      out
        lea     rcx, [rbx + 1]
        tell    "[r8 + EVENTS]", rcx
        cmp     rbx, [r8 + LIMIT]
        jae     out
        mov     rax, [r8 + SCOPE]
        test    eax, eax
        jz      outside
        cmp     eax, 2
        je      by_depth
        ja      by_word
        mov     rcx, [r8 + FROM]
        mov     rdi, fs:[rcx]
        test    rdi, rdi
        jz      out                             # the thread is in no isolate
        mov     r15, rdi
        bts     rdi, ISOLATE
        call    rule
        jc      unsure
        cmp     eax, 1
        jne     out
        mov     rcx, [r8 + LEVEL]
        mov     eax, [r15 + rcx]
        cmp     eax, [r8 + BASELINE]
        ja      out
        jmp     outside
by_word:
        mov     rcx, [r8 + FROM]
        cmp     qword ptr fs:[rcx], 0
        jne     out
        jmp     outside
by_depth:
        mov     rdi, fs:[0]                     # the thread pointer itself: System V ABI, AMD64 supplement 1.0, 3.4.2
        call    depth
        jc      unsure
        cmp     qword ptr [rsi + 8], 0
        jne     out
outside:
        sub     rsp, WALK_SIZE
        walk_stack
whole:
own:
        xor     edi, edi
        jmp     count
broken:
        mov     edi, 8
count:                                          # rdi: 0 for a complete stack, 8 for one that could not be followed further
        mov     rbx, r12
        sub     rbx, [r8 + NODES]
        shr     rbx, 1
        add     rbx, [r8 + COUNTS]
        mov     ecx, 1
        lock xadd [rbx + rdi], rcx
        cmp     qword ptr [r8 + PARENT], 0
        je      walked
        inc     rcx
        tell    "[r12 + rdi + 16]", rcx
        jmp     walked
full:
        cmp     qword ptr [r8 + PARENT], 0
        je      walked
        lock inc qword ptr [r8 + FULL]
walked:
        add     rsp, WALK_SIZE
        jmp     out
unsure:
        cmp     qword ptr [r8 + PARENT], 0
        je      out
        lock inc qword ptr [r8 + UNSURE]
        jmp     out

        walk_functions

# Set rsi to the entry of the thread rdi, which is added if it is missing. Carry: the table is full. Clobbers rax, rcx, rdx.
depth:
        place   THREADS_MASK
        mov     edx, PROBES
        mov     rcx, rax
1:      and     rcx, [r8 + THREADS_MASK]
        mov     rsi, rcx
        shl     rsi, 4
        add     rsi, [r8 + THREADS]
        mov     rax, [rsi]
        cmp     rax, rdi
        je      2f
        test    rax, rax
        jnz     3f
        lock cmpxchg [rsi], rdi
        je      2f
        cmp     rax, rdi
        je      2f
3:      inc     rcx
        dec     edx
        jnz     1b
        stc
        ret
2:      clc
        ret

out:
        leave_it
count_end:

# The stub of a function that opens or closes a scope. It adds r11 to the thread's depth, unless the result would be below 0.
step_begin:
        enter
        je      3f
        mov     rdi, fs:[0]
        mov     rax, [r8 + GOLDEN]
        imul    rax, rdi
        shr     rax, 40
        mov     edx, PROBES
        mov     rcx, rax
1:      and     rcx, [r8 + THREADS_MASK]
        mov     rsi, rcx
        shl     rsi, 4
        add     rsi, [r8 + THREADS]
        mov     rax, [rsi]
        cmp     rax, rdi
        je      2f
        test    rax, rax
        jnz     4f
        lock cmpxchg [rsi], rdi
        je      2f
        cmp     rax, rdi
        je      2f
4:      inc     rcx
        dec     edx
        jnz     1b
        jmp     3f
2:      add     r11, [rsi + 8]
        js      3f
        mov     [rsi + 8], r11
3:
        leave_it
step_end:
