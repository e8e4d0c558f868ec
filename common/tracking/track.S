# The stubs of `track`: code in front of the functions of allocators, x86-64. Their bytes are in
# common/tracking/trackcode.py, made from this file by `python tests/support/stub.py`; the layout of
# the table is in common/tracking/record_table.py.
#
# In front of a function that allocates: if the size is wanted, the stack is walked (stack_walk.S);
# the function is called, and the block that it returns recorded. For as long as the call takes, the
# stub's frame is between the function and its caller; nothing else of the stack is changed, and no
# exception passes through it: a function that may throw is not called itself but its variant that
# does not. Only if that fails is the function entered, from where the stub was entered. A stub that
# finds the frame of another on the stack, with no signal's between, records nothing: one call is
# recorded once. In front of a function that frees: a recorded block is marked.
#
# The stubs make no system call, take no lock, and preserve all registers besides rax and the flags.
# A stub begins with words that the installer fills in.

#include "../counting/stack_walk.S"

# Offsets in the table, besides those of stack_walk.S. Threads have entries of 32 bytes: thread pointer,
# what is left until the next sample (in 1/1024), the mean that this was drawn by, a random number.
        .set LEAST, 0x78                        # bytes that a recorded block has at least, and up to how many more
        .set SPAN, 0x80
        .set MEAN, 0x88                         # one in so many is recorded; up to 1: all
        .set BY_BYTES, 0x90                     # all bits: of bytes; 0: of blocks
        .set RECORDS, 0x98
        .set CAPACITY, 0xa0
        .set INDEX, 0xa8                        # numbers of records, plus 1, by the hash of the address
        .set INDEX_MASK, 0xb0
        .set FILTER, 0xb8                       # how many live records have this hash, in two bytes each
        .set DRAWS, 0xc0                        # 4096 numbers, exponentially distributed with the mean 1024
        .set BEGIN, 0xc8                        # where the routines are
        .set RECORD, 0xd0
        .set FORGET, 0xd8
        .set REVIVE, 0xe0
        .set TAKEN, 0x1000                      # records, and what did not fit

# A record: address, node of the stack (with bit 0: not followed to its end), size, then in four bytes
# each the mean that it was drawn by (0: none) and one of these.
        .set LIVE, 1
        .set FREED, 2
        .set UNSEEN, 3                          # it must have been freed: its address was allocated again
        .set UNPLACED, 4                        # frees do not find it

# Offsets from the frame pointer of a stub.
        .set STACK_ID, -16                      # before the walk: the function's key
        .set SIZE, -24
        .set DRAWN, -32
        .set FIRST, -40                         # arguments of the function
        .set SECOND, -48

        .macro stub name
        .balign 8
\name\()_begin:
table\@:
        .quad   0
key\@:
        .quad   0
other\@:
        .quad   0                               # a function that is called instead
\name\()_entry:
        push    rbp
        mov     rbp, rsp
        push    r8
        mov     r8, [rip + table\@]
        cmp     qword ptr [r8 + ENABLED], 0
        je      8f
        sub     rsp, 40
        .endm

# Choose by the size in rax, and walk the stack; to 7 if the block is not recorded.
        .macro choose name
        sub     rax, [r8 + LEAST]
        cmp     rax, [r8 + SPAN]
        ja      7f
        add     rax, [r8 + LEAST]
        mov     [rbp + SIZE], rax
        mov     rax, [rip + \name\()_begin + 8]
        mov     [rbp + STACK_ID], rax
        call    [r8 + BEGIN]
        jc      7f
        .endm

# Behind the call: r8 is the table.
        .macro returned name
\name\()_back:
        mov     [rbp - 8], r8
        mov     r8, [rip + \name\()_begin]
        .endm

        .macro leave_stub
        mov     r8, [rbp - 8]
        leave
        ret
        .endm

# On to the function itself, as if there were no stub.
        .macro pass name
7:      add     rsp, 40
8:      pop     r8
        pop     rbp
\name\()_end:
        .endm

# A function whose result is the block.
        .macro allocate name
        choose  \name
        mov     r8, [rbp - 8]
        call    \name\()_end
        returned \name
        test    rax, rax
        jz      1f
        call    [r8 + RECORD]
1:      leave_stub
        pass    \name
        .endm

        stub    first                           # f(size)
        mov     rax, rdi
        allocate first

        stub    second                          # f(alignment, size)
        mov     rax, rsi
        allocate second

        stub    product                         # f(count, size); where the product is no number, it fails
        mov     rax, rdi
        imul    rax, rsi
        allocate product

        stub    stored                          # f(where to store the block, alignment, size): an error number
        mov     rax, rdx
        mov     [rbp + FIRST], rdi
        choose  stored
        mov     r8, [rbp - 8]
        call    stored_end
        returned stored
        test    eax, eax
        jnz     1f
        mov     rax, [rbp + FIRST]
        mov     rax, [rax]
        call    [r8 + RECORD]
        xor     eax, eax
1:      leave_stub
        pass    stored

        stub    throwing                        # f(size, …), that throws where it fails
        mov     rax, rdi
        mov     [rbp + FIRST], rdi
        mov     [rbp + SECOND], rsi
        choose  throwing
        mov     r8, [rbp - 8]
        call    [rip + throwing_begin + 16]
        returned throwing
        test    rax, rax
        jz      1f
        call    [r8 + RECORD]
        leave_stub
1:      mov     rdi, [rbp + FIRST]
        mov     rsi, [rbp + SECOND]
        pass    throwing

        stub    moving                          # realloc(block, size)
        call    [r8 + FORGET]
        mov     [rbp + FIRST], rax              # its record, or 0
        mov     [rbp + SECOND], rsi
        mov     rax, rsi
        choose  moving
        jmp     2f
7:      cmp     qword ptr [rbp + FIRST], 0
        je      7f
        mov     qword ptr [rbp + STACK_ID], -1  # not recorded
2:      mov     r8, [rbp - 8]
        call    moving_end
        returned moving
        test    rax, rax
        jz      1f
        cmp     qword ptr [rbp + STACK_ID], -1
        je      3f
        call    [r8 + RECORD]
        jmp     3f
1:      cmp     qword ptr [rbp + SECOND], 0
        je      3f                              # it was freed
        cmp     qword ptr [rbp + FIRST], 0
        je      3f
        call    [r8 + REVIVE]
3:      leave_stub
        pass    moving

        stub    freeing                         # f(block, …)
        mov     [rbp - 16], rax
        call    [r8 + FORGET]
        mov     rax, [rbp - 16]
        pass    freeing

# The routines that the stubs call; r8 is the table, rbp the stub's frame. They preserve all registers
# but rax and the flags.
routines_begin:
# The block that the function will return is to be recorded: find its stack. Carry: it is not.
        cmp     qword ptr [r8 + MEAN], 1
        ja      sampled
        mov     qword ptr [rbp + DRAWN], 0
chosen:
        push    rbx
        push    rcx
        push    rdx
        push    rsi
        push    rdi
        push    rbp
        push    r9
        push    r10
        push    r11
        push    r12
        push    r13
        push    r14
        push    r15
        mov     rax, [r8 + TAKEN]
        cmp     rax, [r8 + CAPACITY]
        jae     no_space
        lea     r14, [rbp + 8]                  # the stack pointer at entry
        mov     r9, r14
        mov     r10, [rbp]
        mov     r11, [rbp + STACK_ID]
        walk_stack
own:
        bt      r15d, INTERRUPTED
        jnc     nested
        lea     rbx, [r10 + rsi]
        jmp     caller
broken:
        or      r12, 1
        jmp     whole
full:
        lock inc qword ptr [r8 + FULL]
        xor     r12d, r12d
whole:
        mov     rax, r12
        clc
        jmp     restore
no_space:
        lock inc qword ptr [r8 + TAKEN]
nested:
        stc
restore:
        pop     r15
        pop     r14
        pop     r13
        pop     r12
        pop     r11
        pop     r10
        pop     r9
        pop     rbp
        pop     rdi
        pop     rsi
        pop     rdx
        pop     rcx
        pop     rbx
        jc      1f
        mov     [rbp + STACK_ID], rax
1:      ret

# Most calls end here: few registers, and a thread's entry is commonly the first that is looked at.
sampled:
        push    rcx
        push    rsi
        mov     rcx, fs:[0]                     # the thread pointer itself: System V ABI, AMD64 supplement 1.0, 3.4.2
        mov     rsi, rcx
        shr     rsi, 12
        and     rsi, [r8 + THREADS_MASK]
        shl     rsi, 5
        add     rsi, [r8 + THREADS]
        cmp     [rsi], rcx
        jne     3f
1:      mov     rax, [rbp + SIZE]
        and     rax, [r8 + BY_BYTES]
        or      rax, 1
        shl     rax, 10
        sub     [rsi + 8], rax
        jle     4f
2:      pop     rsi
        pop     rcx
        stc
        ret
3:      push    rdx
        call    thread
        pop     rdx
        jnc     1b
        jmp     2b
4:      mov     rax, [rsi + 16]
        mov     [rbp + DRAWN], rax
        call    draw
        pop     rsi
        pop     rcx
        jmp     chosen

# rsi: the entry of the thread rcx, from rsi on, made if there is none. Carry: there is no space. Clobbers rax, rdx.
thread:
        mov     edx, PROBES
1:      mov     rax, [rsi]
        cmp     rax, rcx
        je      2f
        test    rax, rax
        jnz     3f
        lock cmpxchg [rsi], rcx
        je      4f
3:      add     rsi, 32
        mov     rax, [r8 + THREADS_MASK]        # the last entry is followed by the first
        inc     rax
        shl     rax, 5
        add     rax, [r8 + THREADS]
        cmp     rsi, rax
        jb      5f
        mov     rsi, [r8 + THREADS]
5:      dec     edx
        jnz     1b
        lock inc qword ptr [r8 + FULL]
        stc
        ret
4:      rdtsc
        shl     rdx, 32
        or      rax, rdx
        xor     rax, rcx
        mov     [rsi + 24], rax
        call    draw
        mov     rcx, [rsi]
2:      clc
        ret

# How far the next sample of the thread at rsi is (Knuth's MMIX generator). Clobbers rax, rcx.
draw:
        mov     rax, [rsi + 24]
        mov     rcx, 6364136223846793005
        imul    rax, rcx
        mov     rcx, 1442695040888963407
        add     rax, rcx
        mov     [rsi + 24], rax
        shr     rax, 52
        mov     rcx, [r8 + DRAWS]
        mov     ecx, [rcx + 4 * rax]
        mov     rax, [r8 + MEAN]
        mov     [rsi + 16], rax
        imul    rax, rcx
        mov     [rsi + 8], rax
        ret

        walk_functions

# Hash the address rdi: rcx becomes where FILTER counts it, rax where INDEX has it.
        .macro hashed
        mov     rax, [r8 + GOLDEN]
        imul    rax, rdi
        mov     rcx, rax
        shr     rcx, 47
        shl     rcx, 1
        add     rcx, [r8 + FILTER]
        shr     rax, 40
        .endm

# Record the block at rax, with what the stub's frame says of it.
routines_record:
        push    rax
        push    rbx
        push    rcx
        push    rdx
        push    rsi
        push    rdi
        push    r9
        push    r10
        mov     rdi, rax
        mov     esi, 1
        lock xadd [r8 + TAKEN], rsi
        cmp     rsi, [r8 + CAPACITY]
        jae     recorded
        mov     rbx, rsi
        shl     rbx, 5
        add     rbx, [r8 + RECORDS]
        mov     [rbx], rdi
        mov     rcx, [rbp + STACK_ID]
        mov     [rbx + 8], rcx
        mov     rcx, [rbp + SIZE]
        mov     [rbx + 16], rcx
        mov     ecx, [rbp + DRAWN]
        mov     [rbx + 24], ecx
        mov     dword ptr [rbx + 28], LIVE
        hashed
        lock inc word ptr [rcx]
        mov     r9, rax
        inc     esi
        mov     r10d, PROBES
1:      and     r9, [r8 + INDEX_MASK]
        mov     rdx, [r8 + INDEX]
        lea     rdx, [rdx + 4 * r9]
        mov     eax, [rdx]
2:      test    eax, eax
        jz      3f
        mov     ecx, eax
        dec     ecx
        shl     rcx, 5
        add     rcx, [r8 + RECORDS]
        cmp     dword ptr [rcx + 28], FREED
        je      3f
        cmp     [rcx], rdi
        jne     4f
        mov     dword ptr [rcx + 28], UNSEEN
3:      lock cmpxchg [rdx], esi
        je      recorded
        jmp     2b
4:      inc     r9
        dec     r10d
        jnz     1b
        mov     dword ptr [rbx + 28], UNPLACED
recorded:
        pop     r10
        pop     r9
        pop     rdi
        pop     rsi
        pop     rdx
        pop     rcx
        pop     rbx
        pop     rax
        ret

# The block rdi is to be freed. rax: its record, 0 if it has none.
routines_forget:
        push    rcx
        hashed
        cmp     word ptr [rcx], 0
        jne     1f
        xor     eax, eax
        pop     rcx
        ret
1:      push    rbx
        push    rdx
        push    rsi
        push    r9
        mov     r9, rax
        mov     esi, PROBES
2:      and     r9, [r8 + INDEX_MASK]
        mov     rdx, [r8 + INDEX]
        mov     ebx, [rdx + 4 * r9]
        test    ebx, ebx
        jz      4f
        dec     ebx
        shl     rbx, 5
        add     rbx, [r8 + RECORDS]
        cmp     [rbx], rdi
        jne     3f
        mov     eax, LIVE
        mov     edx, FREED
        lock cmpxchg [rbx + 28], edx
        jne     3f
        lock dec word ptr [rcx]
        mov     rax, rbx
        jmp     5f
3:      inc     r9
        dec     esi
        jnz     2b
4:      xor     eax, eax
5:      pop     r9
        pop     rsi
        pop     rdx
        pop     rbx
        pop     rcx
        ret

# The block of the stub's frame was not moved: its record is live as before.
routines_revive:
        push    rax
        push    rcx
        push    rdi
        mov     rcx, [rbp + FIRST]
        mov     rdi, [rcx]
        mov     dword ptr [rcx + 28], LIVE
        hashed
        lock inc word ptr [rcx]
        pop     rdi
        pop     rcx
        pop     rax
        ret
routines_end:
