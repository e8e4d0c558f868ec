# The stubs of `track`: code in front of the functions of allocators, x86-64. Their bytes are in
# common/tracking/generated/track.py, made from this file by `python tools/assemble_stubs.py`; the layout of
# the table is in common/tracking/record_table.py.
#
# The stub of a function that allocates walks the stack (stack_walk.S) if the size is wanted. Then it
# calls the function, and records the block that the function returns. During this call, the stub's
# frame is between the function and its caller. The stub does not change other parts of the stack.
#
# No exception passes through the frame: if the function may throw, the stub calls the variant of the
# function that does not throw. If the variant fails, the stub removes its frame and jumps to the
# function itself.
#
# If a stub finds the frame of another stub on the stack, without the frame of a signal in between, it
# records nothing. Therefore a call that passes through several stubs is recorded only once.
#
# The stub of a function that frees marks the record of the block.
#
# Most calls are not recorded. Therefore a stub first makes a cheap test, without a frame. A stub of a
# function that allocates tests whether the size is wanted, and whether the thread's next sample is
# due. A stub of a function that frees tests whether the block may have a record.
#
# The stubs make no system call and take no lock. They preserve all registers except the flags, and
# rax, r10 and r11, which no caller expects to be preserved (System V ABI, AMD64 supplement 1.0, 3.2.1).
# A stub begins with words that the installer fills in.
#
# In comments, "Carry: X" means that the carry flag is set if X.

#include "../counting/stack_walk.S"

# Offsets in the table, in addition to those of stack_walk.S. An entry of a thread has 64 bytes: the
# thread pointer; the amount that is left until the next sample (in 1/1024); the mean with which this
# amount was drawn; and a random number. THREADS_MASK is a mask of byte offsets of entries.
        .set MEAN, 0x50                         # one in this number is recorded; 0 or 1: all
        .set BY_BYTES, 0x58                     # all bits set: MEAN counts bytes; 0: MEAN counts blocks
        .set FILTER, 0x60                       # by hash, the number of live records, in two bytes each
        .set INDEX, 0x68                        # by hash of the address, the number of a record plus 1, with LIVE_BIT if the record is live
        .set INDEX_MASK, 0x70
        .set RECORDS, 0x78
        .set CAPACITY, 0x80
        .set DRAWS, 0x88                        # 4096 numbers, exponentially distributed with the mean 1024
        .set BEGIN, 0x90                        # where the routines are
        .set RECORD, 0x98
        .set FORGET, 0xa0
        .set REVIVE, 0xa8
        .set LEAST, 0x1018                      # minimum size of a recorded block; SPAN: the maximum size minus the minimum size
        .set SPAN, 0x1020
        .set NEXT, 0x1080                       # number of the next record; also counts records that do not fit
        .set SMALL_FILTER, 0x1800               # like FILTER, with 1024 counters
        .set TAKEN, 0x2000                      # the highest value of NEXT so far; findleaks reads it
        .set GOLDEN32, 0x9e3779b1

# A record contains the address, the node of the stack (bit 0 is set if the stack was not followed to its
# end), and the size. Then follow, in four bytes each, the mean with which it was drawn (0: none), and one
# of these states.
        .set LIVE, 1
        .set FREED, 2
        .set UNSEEN, 3                          # its address was allocated again, so it must have been freed
        .set UNPLACED, 4                        # the index has no space for it, so stubs of functions that free do not find it
        .set REPLACED, 5                        # another record describes the same block
        .set LIVE_BIT, 31
        .set MREMAP_DONTUNMAP, 4                # Linux, include/uapi/linux/mman.h

# Forked children. A signal handler may fork at any instruction; signals often arrive when a page is first
# used. Then the child also executes the rest of the stub: before the parent, or long after it, when the
# parent has freed the block. The child must change nothing that the parent relies on:
#
# - THREADS, FILTER, INDEX, NEXT, and all switches are in memory that is private to the process. The
#   kernel fills it with zeros in a child (MADV_WIPEONFORK). PARENT is therefore 0 in a child.
# - Records are shared with findleaks, and so with the child. A thread that takes a number from NEXT, or
#   clears a LIVE_BIT, and is not in a child afterwards, owns the record. A child that is forked after that
#   writes the same values as its parent. The state of a record only advances, and each change compares it
#   with the previous state. Therefore a late child changes nothing.

# Offsets from the frame pointer of a stub.
        .set STACK_ID, -16                      # before the walk: the function's key
        .set SIZE, -24
        .set DRAWN, -32
        .set FIRST, -40                         # arguments of the function
        .set SECOND, -48

        .macro stub name
        .balign 8
\name\()_begin:
        .quad   0                               # the table
        .quad   0                               # the function's key
        .quad   0                               # a function that is called instead
        .endm

        .macro make_frame name
        push    rbp
        mov     rbp, rsp
        push    r8
        mov     r8, [rip + \name\()_begin]
        cmp     qword ptr [r8 + ENABLED], 0
        je      8f
        sub     rsp, 40
        .endm

# The beginning of the stub of a function that allocates, until its frame is complete.
        .macro allocating name
        stub    \name
\name\()_due:                                  # undo the change: it is made again with the frame
        add     [rax + 8], r10
\name\()_slow:
        make_frame \name
        .endm

# Decide by the size in rax, and walk the stack. Jump to 7 if the block is not recorded.
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

# After the call: set r8 to the table.
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

# Remove the frame, and jump to the function itself.
        .macro pass name
7:      add     rsp, 40
8:      pop     r8
        pop     rbp
        jmp     \name\()_end
        .endm

# The target of the jump that replaces the beginning of the function: set r11 to the table.
        .macro enter name
\name\()_entry:
        mov     r11, [rip + \name\()_begin]
        .endm

# Jump to `slow` if the block rdi may have a record.
        .macro look_near name
        imul    eax, edi, GOLDEN32
        shr     eax, 22
        cmp     word ptr [r11 + 2 * rax + SMALL_FILTER], 0
        jne     \name\()_slow
        .endm

# Set rax to the first place in the table at which the entry of the thread may be. fs:[0] is the thread pointer itself (System V ABI, AMD64
# supplement 1.0, 3.4.2).
        .macro find_thread table
        mov     rax, fs:[0]
        imul    eax, eax, GOLDEN32
        shr     eax, 14
        and     rax, [\table + THREADS_MASK]
        add     rax, [\table + THREADS]
        .endm

# Change `size`, the size of a block, to the amount by which the block reduces the amount until the next sample.
        .macro amount size, table
        and     \size, [\table + BY_BYTES]
        or      \size, 1
        shl     \size, 10
        .endm

# Jump to `slow` if a block of the size in r10 may have to be recorded, or if the thread is not known yet.
        .macro decide name
        mov     rax, r10
        sub     rax, [r11 + LEAST]
        cmp     rax, [r11 + SPAN]
        ja      \name\()_end
        amount  r10, r11
        find_thread r11
        mov     r11, fs:[0]
        cmp     [rax], r11
        jne     \name\()_slow
        sub     [rax + 8], r10
        jle     \name\()_due
\name\()_end:
        .endm

# The stub of a function that returns the block.
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
        enter   \name
        .endm

        allocating first                # f(size)
        mov     rax, rdi
        allocate first
        mov     r10, rdi
        decide  first

        allocating second               # f(alignment, size)
        mov     rax, rsi
        allocate second
        mov     r10, rsi
        decide  second

        allocating product              # f(count, size); fails if the product overflows
        mov     rax, rdi
        imul    rax, rsi
        allocate product
        mov     r10, rdi
        imul    r10, rsi
        decide  product

        allocating stored               # f(address at which the block is stored, alignment, size); returns an error number
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
        enter   stored
        mov     r10, rdx
        decide  stored

        allocating throwing             # f(size, …); throws an exception if it fails
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
        enter   throwing
        mov     r10, rdi
        decide  throwing

        allocating moving               # realloc(block, size)
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
        je      3f                              # the block was freed
        cmp     qword ptr [rbp + FIRST], 0
        je      3f
        call    [r8 + REVIVE]
3:      leave_stub
        pass    moving
        enter   moving
        look_near moving
        mov     r10, rsi
        decide  moving

        allocating remapping            # mremap(address, old size, size, flags, …); returns -1 if it fails
        xor     eax, eax
        test    rsi, rsi
        jz      1f                              # it maps the same pages again
        test    cl, MREMAP_DONTUNMAP
        jnz     1f
        call    [r8 + FORGET]
1:      mov     [rbp + FIRST], rax              # its record, or 0
        mov     rax, rdx
        choose  remapping
        jmp     2f
7:      cmp     qword ptr [rbp + FIRST], 0
        je      7f
        mov     qword ptr [rbp + STACK_ID], -1  # not recorded
2:      mov     r8, [rbp - 8]
        call    remapping_end
        returned remapping
        cmp     rax, -1
        je      1f
        cmp     qword ptr [rbp + STACK_ID], -1
        je      3f
        call    [r8 + RECORD]
        jmp     3f
1:      cmp     qword ptr [rbp + FIRST], 0
        je      3f
        call    [r8 + REVIVE]
3:      leave_stub
        pass    remapping
        enter   remapping
        look_near remapping
        mov     r10, rdx
        decide  remapping

# The last part of the stub of a function that releases the block rdi. The stub has no frame yet.
        .macro release name
        mov     rax, [r11 + GOLDEN]
        imul    rax, rdi
        shr     rax, 47
        mov     r10, [r11 + FILTER]
        cmp     word ptr [r10 + 2 * rax], 0
        je      \name\()_end
        make_frame \name
        call    [r8 + FORGET]
        pass    \name
        enter   \name
        look_near \name
\name\()_end:
        .endm

        stub    freeing                         # f(block, …)
freeing_slow:
        release freeing

        stub    unmapping                       # munmap(address, size); fails if the size is 0 or larger than user space
unmapping_slow:
        test    rsi, rsi
        jle     unmapping_end
        release unmapping

# The routines that the stubs call. r8 is the table, and rbp the stub's frame. They preserve all registers
# except rax and the flags.
routines_begin:
# If the block that the function will return is to be recorded, find its stack. Carry: it is not to be recorded.
        push    rcx
        push    rsi
        find_thread r8
        mov     rsi, rax
        mov     rcx, fs:[0]
        push    rdx
        call    thread
        pop     rdx
        jc      3f
        mov     rax, [rbp + SIZE]
        amount  rax, r8
        sub     [rsi + 8], rax
        jg      2f
        mov     rax, [rsi + 16]
        mov     [rbp + DRAWN], rax
        call    draw
        jmp     4f
3:      mov     qword ptr [rbp + DRAWN], 0      # no space for the thread
        cmp     qword ptr [r8 + MEAN], 1
        jbe     4f
2:      pop     rsi
        pop     rcx
        stc
        ret
4:      pop     rsi
        pop     rcx
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
        sub     rsp, WALK_SIZE
        mov     rax, [r8 + NEXT]
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
        mov     ecx, 1
        lock xadd [r8 + NEXT], rcx
        inc     rcx
        tell    "[r8 + TAKEN]", rcx
nested:
        stc
restore:
        lea     rsp, [rsp + WALK_SIZE]          # preserves the carry
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

# Set rsi to the entry of the thread rcx, which is searched from rsi on, and added if it is missing. Carry: there is no space. Clobbers rax, rdx.
thread:
        mov     edx, PROBES
1:      mov     rax, [rsi]
        cmp     rax, rcx
        je      2f
        test    rax, rax
        jnz     3f
        lock cmpxchg [rsi], rcx
        je      4f
3:      add     rsi, 64
        mov     rax, [r8 + THREADS_MASK]        # the last entry is followed by the first
        add     rax, 64
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

# Draw the amount until the next sample of the thread at rsi (Knuth's MMIX generator); 0 if every block is recorded. Clobbers rax, rcx.
draw:
        cmp     qword ptr [r8 + MEAN], 1
        ja      1f
        mov     qword ptr [rsi + 8], 0
        mov     qword ptr [rsi + 16], 0
        ret
1:
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

# Change the counters of the address rdi in SMALL_FILTER and FILTER by one. rcx is the address of the counter in FILTER. Clobbers eax.
        .macro count_it how
        lock \how word ptr [rcx]
        imul    eax, edi, GOLDEN32
        shr     eax, 22
        lock \how word ptr [r8 + 2 * rax + SMALL_FILTER]
        .endm

# Hash the address rdi. Set rcx to the address of its counter in FILTER, and rax to its first place in INDEX.
        .macro hashed
        mov     rax, [r8 + GOLDEN]
        imul    rax, rdi
        mov     rcx, rax
        shr     rcx, 47
        shl     rcx, 1
        add     rcx, [r8 + FILTER]
        shr     rax, 40
        .endm

# Jump to `out` in a forked child.
        .macro unless_child out
        cmp     qword ptr [r8 + PARENT], 0
        je      \out
        .endm

# Record the block at rax, with the data in the stub's frame.
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
        lock xadd [r8 + NEXT], rsi
        unless_child recorded                   # in a child, rsi may come from its own NEXT
        lea     rcx, [rsi + 1]
        tell    "[r8 + TAKEN]", rcx
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
        xor     eax, eax
        mov     ecx, LIVE
        lock cmpxchg [rbx + 28], ecx
        hashed
        mov     r9, rax
        count_it inc
        inc     esi
        bts     esi, LIVE_BIT
        mov     r10d, PROBES
1:      and     r9, [r8 + INDEX_MASK]
        mov     rdx, [r8 + INDEX]
        lea     rdx, [rdx + 4 * r9]
        mov     eax, [rdx]
2:      mov     ecx, eax
        btr     ecx, LIVE_BIT
        jnc     3f                              # an entry that is free, or whose block was freed
        dec     ecx
        shl     rcx, 5
        add     rcx, [r8 + RECORDS]
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

# Mark the record of the block rdi, which is about to be freed. Set rax to the record; 0 if there is none.
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
        lea     rdx, [rdx + 4 * r9]
        mov     eax, [rdx]
        test    eax, eax
        jz      4f
        mov     ebx, eax
        btr     ebx, LIVE_BIT
        jnc     3f
        dec     ebx
        shl     rbx, 5
        add     rbx, [r8 + RECORDS]
        cmp     [rbx], rdi
        jne     3f
        mov     r9d, eax
        btr     r9d, LIVE_BIT
        lock cmpxchg [rdx], r9d
        jne     4f                              # in a child
        mov     eax, LIVE
        mov     edx, FREED
        lock cmpxchg [rbx + 28], edx
        count_it dec
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

# Give the block of the stub's frame a new record, because it was not moved or freed. The record at FIRST cannot become live again, because
# the state of a record only advances.
routines_revive:
        push    rax
        push    rcx
        unless_child 1f
        mov     rcx, [rbp + FIRST]
        mov     eax, [rcx + 24]
        mov     [rbp + DRAWN], rax
        mov     rax, [rcx + 16]
        mov     [rbp + SIZE], rax
        mov     rax, [rcx + 8]
        mov     [rbp + STACK_ID], rax
        mov     rax, [rcx]
        call    routines_record
        mov     dword ptr [rcx + 28], REPLACED
1:      pop     rcx
        pop     rax
        ret
routines_end:
