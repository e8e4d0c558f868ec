# The stubs of `track`: code in front of the functions of allocators, x86-64. Their bytes are in
# common/tracking/generated/track.py, made from this file by `python tools/assemble_stubs.py`; the layout of
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
# Most calls are not recorded, and so each stub first decides that as cheaply as it can: whether the
# size is wanted, and (by what is left until the thread's next sample) whether this call is; or whether
# there can be a record of the block that is freed. Only else it makes its frame.
#
# The stubs make no system call, take no lock, and preserve all registers besides rax, r10, r11, which
# no function expects to be preserved (System V ABI, AMD64 supplement 1.0, 3.2.1), and the flags. A stub
# begins with words that the installer fills in.

#include "../counting/stack_walk.S"

# Offsets in the table, besides those of stack_walk.S. Threads have entries of 64 bytes: thread pointer,
# what is left until the next sample (in 1/1024), the mean that this was drawn by, a random number.
# THREADS_MASK is of offsets.
        .set MEAN, 0x50                         # one in so many is recorded; up to 1: all
        .set BY_BYTES, 0x58                     # all bits: of bytes; 0: of blocks
        .set FILTER, 0x60                       # how many live records have this hash, in two bytes each
        .set INDEX, 0x68                        # numbers of records, plus 1, by the hash of the address; in live ones, LIVE_BIT is set
        .set INDEX_MASK, 0x70
        .set RECORDS, 0x78
        .set CAPACITY, 0x80
        .set DRAWS, 0x88                        # 4096 numbers, exponentially distributed with the mean 1024
        .set BEGIN, 0x90                        # where the routines are
        .set RECORD, 0x98
        .set FORGET, 0xa0
        .set REVIVE, 0xa8
        .set LEAST, 0x1018                      # bytes that a recorded block has at least, and up to how many more
        .set SPAN, 0x1020
        .set NEXT, 0x1080                       # number of the next record; also counts records that do not fit
        .set SMALL_FILTER, 0x1800               # as FILTER, 1024 of them
        .set TAKEN, 0x2000                      # the greatest NEXT; findleaks reads it
        .set GOLDEN32, 0x9e3779b1

# A record: address, node of the stack (with bit 0: not followed to its end), size, then in four bytes
# each the mean that it was drawn by (0: none) and one of these states.
        .set LIVE, 1
        .set FREED, 2
        .set UNSEEN, 3                          # it must have been freed: its address was allocated again
        .set UNPLACED, 4                        # frees do not find it
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

# The stub of a function that allocates, up to where it has its frame.
        .macro allocating name
        stub    \name
\name\()_due:                                  # looked at again with the frame: as it was
        add     [rax + 8], r10
\name\()_slow:
        make_frame \name
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
        jmp     \name\()_end
        .endm

# Where the function's jump leads: r11 is the table.
        .macro enter name
\name\()_entry:
        mov     r11, [rip + \name\()_begin]
        .endm

# To `slow` if the block rdi may have a record.
        .macro look_near name
        imul    eax, edi, GOLDEN32
        shr     eax, 22
        cmp     word ptr [r11 + 2 * rax + SMALL_FILTER], 0
        jne     \name\()_slow
        .endm

# rax becomes the entry of a thread in the table, or where to look for it first. fs:[0] is the thread pointer itself: System V ABI, AMD64
# supplement 1.0, 3.4.2.
        .macro find_thread table
        mov     rax, fs:[0]
        imul    eax, eax, GOLDEN32
        shr     eax, 14
        and     rax, [\table + THREADS_MASK]
        add     rax, [\table + THREADS]
        .endm

# What a block of the size in `size` takes from what is left until the next sample.
        .macro amount size, table
        and     \size, [\table + BY_BYTES]
        or      \size, 1
        shl     \size, 10
        .endm

# Is a block of the size in r10 to be recorded? To `slow` if so, or if the thread is not known yet.
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

        allocating product              # f(count, size); where the product is no number, it fails
        mov     rax, rdi
        imul    rax, rsi
        allocate product
        mov     r10, rdi
        imul    r10, rsi
        decide  product

        allocating stored               # f(where to store the block, alignment, size): an error number
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

        allocating throwing             # f(size, …), that throws where it fails
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
        je      3f                              # it was freed
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

# The routines that the stubs call; r8 is the table, rbp the stub's frame. They preserve all registers
# but rax and the flags.
routines_begin:
# Is the block that the function will return to be recorded? Find its stack. Carry: it is not.
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

# How far the next sample of the thread at rsi is (Knuth's MMIX generator); 0 if all are. Clobbers rax, rcx.
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

# Change by one what SMALL_FILTER and FILTER count of the address rdi, of which rcx is the place in FILTER. Clobbers eax.
        .macro count_it how
        lock \how word ptr [rcx]
        imul    eax, edi, GOLDEN32
        shr     eax, 22
        lock \how word ptr [r8 + 2 * rax + SMALL_FILTER]
        .endm

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

# Jump to `out` in a forked child.
        .macro unless_child out
        cmp     qword ptr [r8 + PARENT], 0
        je      \out
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

# The block of the stub's frame was not moved: it gets a new record in place of the one at FIRST, because the state of a record only advances.
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
