# The stack walk of the stubs that findleaks puts into a process, x86-64, for stub.S and track.S.
#
# It walks the thread's stack as the unwinder does, by rules (one for each return address) that
# findleaks made from call frame information, and finds the stack in a tree. Each frame has a node,
# with the callee's node as parent; the node of the last frame represents the stack. The tables have no
# locks: each new entry is published by one cmpxchg16b. If an address has no rule, the stub asks the
# rule server (rule_service.py), and waits for a bounded time. It reads only the table, the frames of
# this stack that the rules describe, and the frames that an interpreter maintains for the thread.
# Before it follows a pointer in an interpreter's frame, it checks the pointer (readable_pages.py). The
# layout of the table is in common/injection/stub/table.py.
#
# In comments, "Carry: X" means that the carry flag is set if X.

        .intel_syntax noprefix

# Offsets in the table: a page of settings; a page that the kernel fills with zeros in a forked child
# (a signal handler may fork while its thread is in this code); and memory shared with findleaks.
        .set PATIENCE, 0x10
        .set GOLDEN, 0x18
        .set RULES, 0x20
        .set RULES_MASK, 0x28
        .set NODES, 0x30
        .set NODES_MASK, 0x38
        .set THREADS, 0x40
        .set THREADS_MASK, 0x48
# How the walk finds the frames of an interpreter's functions; see ManagedFrames.chain_settings. CHAIN_KIND 0: none
        .set CHAIN_KIND, 0x100
        .set CHAIN_STATE, 0x108                 # offset of the pointer to the thread's state, from the thread pointer
        .set CHAIN_TOP, 0x110                   # offset of the pointer to the innermost frame in this state
        .set CHAIN_THROUGH, 0x118               # whether the word at CHAIN_TOP points to a pointer to the frame
        .set CHAIN_CODE, 0x120                  # offsets in a frame
        .set CHAIN_PREVIOUS, 0x128
        .set CHAIN_INSTRUCTION, 0x130
        .set CHAIN_OWNER, 0x138
        .set CHAIN_TYPE, 0x140                  # the type of code objects
        .set CHAIN_VERSION, 0x148               # offset of the unique number in a code object; 0: code objects have no such number
        .set CHAIN_LINE, 0x150                  # offsets in a code object of its first line, and in a byte each, of name, file and lines
        .set CHAIN_TEXTS, 0x158
# Settings for Ruby's chain, at the same offsets in the table
        .set RUBY_WHERE, 0x108                  # offset or address of the variable that points to the execution context
        .set RUBY_MODULE, 0x110                 # kind of RUBY_WHERE: 0: offset from the thread pointer, -1: address, others: offset in this TLS module
        .set RUBY_FRAME, 0x118                  # bytes of a control frame
        .set RUBY_LOCATION, 0x120               # offset, in the body of an instruction sequence, of: path, base label, label
        .set RUBY_LINES, 0x128                  # offset, in the same body, of: table of lines, positions, number of entries, index
        .set RUBY_ENTRY, 0x130                  # bytes of an entry of the table of lines
        .set RUBY_LENGTHS, 0x138                # whether a string whose text is inside its object has a word for the length
# Settings for frames of JavaScript functions, at the same offsets in the table
        .set ISOLATE_AT, 0x108                  # offset of the pointer to the thread's isolate, from the thread pointer
        .set SHARED_AT, 0x110                   # offset of the pointer to the SharedFunctionInfo in a function
        .set SCRIPT_AT, 0x118                   # offset of the pointer to the script in a SharedFunctionInfo
        .set FLAGS_AT, 0x120                    # offset in a SharedFunctionInfo of the word with the flags and the function's number in the script
        .set NUMBER_AT, 0x128                   # offset of the script's number in the script
        .set OFFSET_AT, 0x130                   # offset, from an interpreter's frame pointer, of the word with the bytecode's offset
        .set TYPES, 0x138                       # types, 2 bytes each: first of functions, last minus first, SharedFunctionInfo, script
        .set NO_STRING, 0x140                   # all types below this number are types of strings
        .set ENABLED, 0x1000
        .set SERVED, 0x1008                     # whether there is a server to answer
        .set PARENT, 0x1010                     # whether this is the process, not a forked child
        .set CLAIMS, 0x1100                     # for each request, 1 if a thread has it; the distances are those of STATES
        .set EVENTS, 0x2000
        .set FULL, 0x2008
        .set ORPHANED, 0x2018
        .set MANY, 0x2020                       # whether stubs must stop asking for functions of a chain
        .set DAMAGED, 0x2028                    # whether stubs must stop reading frames of an interpreter
        .set STATES, 0x2100                     # of the 16 requests, each in its own cache line of 64 bytes
        .set SLOTS, 0x3000                      # the requests, 0x400 bytes each
        .set PROBES, 64

# Bits of keys, which are addresses below 2^61 otherwise.
        .set EXACT, 63                          # the address at which the thread was interrupted or entered: not a return address
        .set STACK, 62                          # the page number of a stack; its rule is where that stack ends
        .set VALUE, 60                          # a word of an interpreter's frame
        .set NUMBERED, 59                       # with VALUE: a frame of an interpreter's chain, or what is asked about its code

# Kinds of rules: their lowest byte. The second byte is how the caller's frame pointer is found (0:
# unchanged, 1: saved relative to the caller's frame, 2: relative to the frame pointer), the next two
# its offset, the upper four the offset of the caller's frame.
        .set LAST, 0
        .set BY_SP, 1
        .set BY_FP, 2
        .set THROUGH_FP, 3
        .set CHAIN, 4
        .set SIGNAL, 5
        .set OWN, 6                             # findleaks' own code, which has its caller's frame pointer at its own
        .set SWITCH, 7                          # the frame pointer leads to the caller's frame on another stack
        .set INTERPRETED, 8                     # the JVM's interpreter: nodes with the bytecode's address and the method follow
        .set EXECUTES, 7                        # the bit of a kind that is set if the code may execute an interpreter's functions

# Kinds of chains of an interpreter's frames
        .set ENTRY_FRAMES, 1                    # CPython 3.12 to 3.14: the native frame contains the last frame that it executes
        .set C_FRAMES, 2                        # CPython 3.11: the native frame contains a _PyCFrame, which refers to the first frame
        .set PAIRED, 3                          # CPython 3.9 and 3.10: each native frame executes one frame of the chain
        .set CONTROL_FRAMES, 4                  # Ruby: the last frame that a native frame executes has the flag FINISH
        .set JAVASCRIPT, 5                      # V8: each frame of code that executes functions has a pointer to its function; see js_frame
        .set GENERATED, -0x80000000             # rules of code that executes JavaScript functions have this added to their offset
        .set UNKNOWN_FUNCTION, 0x7ffffff        # number of all unknown functions
        .set COMPOSED, 4                        # strings that lead to the last part of the name of a JavaScript function
        .set MOST_HASHED, 4096                  # at most this many bytes of a name or a table of lines are hashed
        .set ISOLATE_BIT, 61                    # with STACK: the number of an area of 256 KiB; its rule is a bitmap of the readable pages
        .set FRAME_BYTES, 80                    # bytes of a frame of CPython 3.11 to 3.14, up to the last field that is read
        .set PAIRED_BYTES, 112                  # the same for CPython 3.9 and 3.10
        .set CODE_BYTES, 168                    # the same for a code object

# Words of a frame of the JVM's interpreter: distances from the frame pointer (frame_x86.hpp of OpenJDK 8 to 25)
        .set METHOD, 24
        .set SENDER, 8                          # the caller's stack pointer

        .set INTERRUPTED, 16                    # the bit of r15 that is set beyond a signal's frame
        .set EXECUTING, 17                      # the bit of r15 that is set in a frame whose rule has EXECUTES
        .set MOVING, 18                         # the bit of r15 that is set for the callers of a function that moves V8's objects
        .set UNREADABLE, 19                     # the bit of r15 that is set if a word of an interpreter's frame refers to unmapped memory

# Words that the walk keeps on the stack: their offsets from the stack pointer, and their size in bytes.
        .set FRAME, 0                           # the next frame of the chain
        .set ANCHOR, 8                          # an address in the native frame that executes FRAME
        .set STOP, 16                           # the first frame that this native frame does not execute
        .set BEGUN, 24                          # whether the walk has already looked for the chain
        .set BYTECODE, 32                        # of the instruction
        .set WALK_SIZE, 40

# Hash the key rdi: rax is the number of the first entry to look at, in a table of (key, value).
        .macro place mask
        mov     rax, [r8 + GOLDEN]
        imul    rax, rdi
        shr     rax, 40
        and     rax, [r8 + \mask]
        .endm

# Raise the shared counter at `counter` to `count`, the value of a private counter. If a forked child does this too, with the value of its
# parent, the counter does not change. Clobbers rax.
        .macro tell counter, count
        mov     rax, \counter
1:      cmp     rax, \count
        jae     2f
        lock cmpxchg \counter, \count
        jne     1b
2:
        .endm

# Jump to `otherwise` unless the `size` bytes at `address` are readable: in a damaged process, any
# word may refer to unmapped memory. Changes only r15. `address` must not use rsp.
        .macro check address, size, otherwise
        push    rcx
        push    rdx
        lea     rcx, [\address]
        mov     edx, \size
        call    readable
        pop     rdx
        pop     rcx
        jc      \otherwise
        .endm

# Walk the stack. r14 and r9 are the stack pointer at a function's entry, r10 the frame pointer, r11 the
# function's key, and r8 the table. Jump to `whole` or `broken` with the stack's node in r12; jump to
# `full` if there is no space for the node; jump to `own` at a frame of findleaks' code, from where the
# walk can continue at `caller`. Clobbers all registers except r8 and rsp. Uses WALK_SIZE bytes from rsp on.
        .macro walk_stack
        mov     qword ptr [rsp + FRAME], 0
        mov     qword ptr [rsp + ANCHOR], 0
        mov     qword ptr [rsp + STOP], 0
        mov     qword ptr [rsp + BEGUN], 0
        mov     rdi, r14
        shr     rdi, 12
        bts     rdi, STACK
        call    rule
        jnc     bounded
        mov     rax, r14                        # no answer: up to the end of this page
        or      rax, 4095
        inc     rax
bounded:
        mov     r13, rax
        xor     r12d, r12d
        mov     r15d, 4096
frame:                                          # r9: stack pointer, r10: frame pointer, r11: key of the place, r12: the callee's node
        call    node
        jc      full
        mov     rdi, r11
        call    rule
        jc      broken
        mov     rdi, rax
        shl     rdi, 32
        sar     rdi, 48                         # offset of the saved frame pointer
        mov     rsi, rax
        sar     rsi, 32                         # offset of the frame
        movzx   edx, ah
        btr     eax, EXECUTES
        jnc     native
        bts     r15d, EXECUTING
native:
        movzx   ecx, al
        cmp     ecx, BY_SP
        jb      complete
        je      by_sp
        cmp     ecx, THROUGH_FP
        jb      by_fp
        je      through_fp
        cmp     ecx, SIGNAL
        je      signal
        cmp     ecx, SWITCH
        je      switch
        cmp     ecx, INTERPRETED
        je      interpreted
        ja      broken
        cmp     ecx, OWN
        je      own
        test    r10, r10                        # CHAIN
        jz      chain_ends
        cmp     r10, r9
        jb      broken
        test    r10b, 7
        jnz     broken
        lea     rbx, [r10 + 16]
        jmp     caller
chain_ends:
        bt      r11, EXACT
        jc      broken
        jmp     complete
by_sp:
        lea     rbx, [r9 + rsi]
        jmp     caller
by_fp:
        lea     rbx, [r10 + rsi]
        jmp     caller
through_fp:
        lea     rcx, [r10 + rsi]
        call    inside
        jc      broken
        mov     rbx, [rcx]
caller:                                         # rbx: where the caller's frame begins
        cmp     rbx, r9                         # a word on the stack may be 0, from which 8 cannot be subtracted
        jbe     broken
        lea     rcx, [rbx - 8]
        cmp     rcx, r9
        jb      broken
        cmp     rbx, r13
        ja      broken
        btr     r15d, EXECUTING
        jnc     alone
        call    managed
        jc      full
alone:
        test    edx, edx
        jz      same_pointer
        lea     rcx, [rbx + rdi]
        cmp     edx, 1
        je      saved
        lea     rcx, [r10 + rdi]
saved:
        call    inside
        jc      broken
        mov     r10, [rcx]
same_pointer:
        mov     r11, [rbx - 8]
        mov     r9, rbx
        test    r11, r11
        jz      complete
        dec     r15w
        jz      broken
        jmp     frame
switch:                                         # the other stack begins at the frame pointer
        test    r10b, 7
        jnz     broken
        mov     rdi, r10
        shr     rdi, 12
        bts     rdi, STACK
        call    rule
        jc      broken
        mov     r14, r10
        mov     r13, rax
        lea     rcx, [r10 + 8]
        call    inside
        jc      broken
        lea     r9, [r10 + 16]
        mov     r11, [r10 + 8]
        mov     r10, [r10]
        test    r11, r11
        jz      complete
        dec     r15w
        jz      broken
        jmp     frame
interpreted:                                    # rdi: offset of the word with the bytecode's address
        test    r10b, 7
        jnz     broken
        lea     rbx, [r10 + rdi]
        cmp     rbx, r9
        jb      broken
        lea     rcx, [r10 + 8]
        call    inside
        jc      broken
        mov     r11, [rbx]
        bts     r11, VALUE
        call    node
        jc      full
        mov     r11, [r10 - METHOD]
        bts     r11, VALUE
        call    node
        jc      full
        mov     rdi, r11                        # the server reads the method while it is on a stack
        call    rule
        jc      broken
        lea     rax, [r10 + 16]
        mov     rbx, [r10 - SENDER]
        cmp     rbx, rax
        cmovb   rbx, rax
        cmp     rbx, r13
        cmova   rbx, rax
        mov     r11, [r10 + 8]
        mov     r10, [r10]
        mov     r9, rbx
        test    r11, r11
        jz      complete
        sub     r15w, 3                         # one for each node
        jbe     broken
        jmp     frame
signal:                                         # the kernel's frame: struct ucontext, its gregs at 40 (arch/x86/include/uapi/asm/sigcontext.h)
        lea     rcx, [r9 + 168]
        call    inside
        jc      broken
        mov     r11, [rcx]
        test    r11, r11
        jz      complete
        bts     r11, EXACT
        mov     r10, [r9 + 120]
        mov     r9, [r9 + 160]
        mov     r14, r9
        bts     r15d, INTERRUPTED
        mov     rdi, r9
        shr     rdi, 12
        bts     rdi, STACK
        call    rule
        jc      broken
        mov     r13, rax
        dec     r15w
        jz      broken
        jmp     frame
complete:
        cmp     qword ptr [r8 + CHAIN_KIND], PAIRED
        jb      whole
        call    rest
        jnc     whole
        mov     r11, 3 << NUMBERED              # none of these native frames executed this frame of the chain
        call    node
        jc      full
        jmp     whole
        .endm

# Add a node for the frame whose address is in rcx and in FRAME, and which has `size` bytes. Store
# the address of the previous frame in FRAME.
        .macro add_python_frame size
        check   rcx, \size, damaged
        call    python_frame
        jc      managed_full
        mov     rcx, [rsp + WALK + FRAME]
        mov     rax, [r8 + CHAIN_PREVIOUS]
        mov     rcx, [rcx + rax]
        mov     [rsp + WALK + FRAME], rcx
        .endm

        .macro walk_functions
# Carry: the word at rcx is not within this stack.
inside:
        cmp     rcx, r14
        jb      1f
        cmp     rcx, r13                        # first: rcx + 8 is small if a damaged frame pointer makes rcx -8
        cmc
        jc      1f
        lea     rax, [rcx + 8]
        cmp     r13, rax
1:      ret

# Set r12 to the node with the key r11 and the parent r12. Add the node if it is missing. Carry: the table is full.
node:
        mov     rax, r12
        rol     rax, 24
        xor     rax, r11
        imul    rax, [r8 + GOLDEN]
        shr     rax, 40
        mov     edi, PROBES
        mov     rbp, rax
1:      and     rbp, [r8 + NODES_MASK]
        mov     rsi, rbp
        shl     rsi, 5
        add     rsi, [r8 + NODES]
        mov     rax, [rsi]
        cmp     rax, r11
        jne     2f
        cmp     [rsi + 8], r12
        je      3f
2:      test    rax, rax
        jnz     4f
        xor     edx, edx                        # rdx:rax is 0
        mov     rbx, r11
        mov     rcx, r12
        lock cmpxchg16b [rsi]
        je      3f
        cmp     rax, r11                        # another thread was faster, perhaps with the same node
        jne     4f
        cmp     rdx, r12
        je      3f
4:      inc     rbp
        dec     edi
        jnz     1b
        stc
        ret
3:      mov     r12, rsi
        clc
        ret

# Set rax to the rule of the key rdi. Carry: there is no rule, even after a request. Clobbers rbp, rbx, rcx, rdx, rsi.
rule:
        mov     ebp, 4                          # number of requests
again:
        place   RULES_MASK
        mov     esi, PROBES
1:      and     rax, [r8 + RULES_MASK]
        mov     rcx, rax
        shl     rcx, 4
        add     rcx, [r8 + RULES]
        mov     rdx, [rcx]
        cmp     rdx, rdi
        je      known
        test    rdx, rdx
        jz      ask
        inc     rax
        dec     esi
        jnz     1b
ask:
        bt      rdi, NUMBERED
        jnc     few
        cmp     qword ptr [r8 + MANY], 0
        jne     unknown
few:
        dec     ebp
        js      unknown
        rdtsc
        shl     rdx, 32
        or      rax, rdx
        mov     rsi, rax                        # time at which the wait began
2:      lea     rcx, [r8 + STATES]
        lea     rbx, [r8 + SLOTS]
3:      mov     edx, 1
        xor     eax, eax
        lock cmpxchg [rcx + CLAIMS - STATES], rdx
        je      mine
        add     rcx, 64
        add     rbx, 0x400
        lea     rdx, [r8 + STATES + 16 * 64]
        cmp     rcx, rdx
        jb      3b
        call    waited
        jc      unknown
        jmp     2b
mine:                                           # a child has its own claims, but shares the requests
        cmp     qword ptr [r8 + PARENT], 0
        je      unknown
        mov     [rbx], rdi
        mov     [rbx + 8], r9
        mov     [rbx + 16], r10
        mov     [rbx + 24], r11
        mov     qword ptr [rcx], 2
4:      cmp     qword ptr [rcx], 3
        je      answered
        call    waited
        jnc     4b
        cmp     qword ptr [r8 + PARENT], 0
        je      unknown
        mov     eax, 2                          # stop waiting, unless the answer has just come
        xor     edx, edx
        lock cmpxchg [rcx], rdx
        jne     answered
        mov     [rcx + CLAIMS - STATES], rdx
unknown:
        stc
        ret
answered:                                       # add the rules of the answer: [rbx + 32] pairs of (key, value)
        cmp     qword ptr [r8 + PARENT], 0
        je      unknown
        mov     esi, [rbx + 32]
        cmp     esi, 56
        ja      6f
        push    rbp
        push    rdi
        push    rcx
        lea     rbp, [rbx + 64]
5:      dec     esi
        js      7f
        mov     rdi, [rbp]
        call    publish
        add     rbp, 16
        jmp     5b
7:      pop     rcx
        pop     rdi
        pop     rbp
6:      cmp     qword ptr [r8 + PARENT], 0
        je      unknown
        mov     qword ptr [rcx + CLAIMS - STATES], 0
        jmp     again
known:
        mov     rax, [rcx + 8]
        clc
        ret

# Add the pair at rbp, with the key rdi, to the rules, unless it is there or the table is full.
# Clobbers rax, rbx, rcx, rdx, rdi.
publish:
        test    rdi, rdi
        jz      9f
        push    rsi
        push    r11
        place   RULES_MASK
        mov     r11, rax
        mov     esi, PROBES
8:      and     r11, [r8 + RULES_MASK]
        mov     rdi, r11
        shl     rdi, 4
        add     rdi, [r8 + RULES]
        mov     rbx, [rbp]
        mov     rcx, [rbp + 8]
        xor     eax, eax
        xor     edx, edx
        lock cmpxchg16b [rdi]
        je      10f
        cmp     rax, rbx
        je      10f
        inc     r11
        dec     esi
        jnz     8b
10:     pop     r11
        pop     rsi
9:      ret

# Carry: the time to wait, which began at rsi, is over, or there is no server to answer.
waited:
        pause
        cmp     qword ptr [r8 + SERVED], 0
        je      11f
        cmp     qword ptr [r8 + ORPHANED], 0
        jne     11f
        rdtsc
        shl     rdx, 32
        or      rax, rdx
        sub     rax, rsi
        cmp     [r8 + PATIENCE], rax            # carry: PATIENCE is less than the time elapsed
        jnc     12f
        mov     qword ptr [r8 + ORPHANED], 1
11:     stc
12:     ret

# Carry: some of the edx bytes at rcx (1 to 4096) are not known to be readable. UNREADABLE is then
# set. Clobbers rcx, rdx.
readable:
        push    rax
        lea     rdx, [rcx + rdx - 1]
        call    page
        jc      2f
        xor     rcx, rdx
        shr     rcx, 12
        jz      1f
        mov     rcx, rdx
        call    page
        jc      2f
1:      pop     rax
        clc
        ret
2:      bts     r15d, UNREADABLE
        pop     rax
        stc
        ret

# Carry: the page of the address rcx is not known to be readable. Clobbers rax.
page:
        push    rdi
        mov     rdi, rcx
        shr     rdi, 18
        mov     rax, rdi
        shr     rax, 29
        jnz     2f                              # not an address of user space
        bts     rdi, STACK
        bts     rdi, ISOLATE_BIT
        place   RULES_MASK
        shl     rax, 4
        add     rax, [r8 + RULES]
        cmp     [rax], rdi
        jne     1f
        mov     rax, [rax + 8]
        push    rcx
        shr     rcx, 12
        bt      rax, rcx
        pop     rcx
        cmc
        jnc     3f
1:      call    ask_page
        jmp     3f
2:      stc
3:      pop     rdi
        ret

# Called if the bitmap with the key rdi is not at its first place in the table, or does not mark the
# page of the address rcx. Search the table, then ask the server for the bitmap. Carry: the bitmap
# still does not mark the page. Preserves all registers but rax.
ask_page:
        push    rbp
        push    rbx
        push    rcx
        push    rdx
        push    rsi
        push    r11
        mov     r11, rcx
        call    rule
        jc      1f
        mov     rcx, r11
        shr     rcx, 12
        bt      rax, rcx
        cmc
        jnc     1f
        mov     ebp, 1
        call    few
        jc      1f
        mov     rcx, r11
        shr     rcx, 12
        bt      rax, rcx
        cmc
1:      pop     r11
        pop     rsi
        pop     rdx
        pop     rcx
        pop     rbx
        pop     rbp
        ret

# Add nodes for the interpreter's frames that the native frame from r9 to rbx executes, innermost
# first. Carry: the table is full. Clobbers rax, rcx, rsi, rbp, r11; r12 becomes the last node.
managed:
        push    rbx
        push    rdi
        push    rdx
        .set WALK, 32                           # offset from the stack pointer to the words of the walk
        cmp     qword ptr [r8 + DAMAGED], 0
        jne     executed
        btr     r15d, UNREADABLE
        cmp     qword ptr [r8 + CHAIN_KIND], JAVASCRIPT
        je      js_frame
        cmp     qword ptr [rsp + WALK + BEGUN], 0
        jne     begun
        mov     qword ptr [rsp + WALK + BEGUN], 1
        bt      r15d, INTERRUPTED               # the signal may have interrupted a change of the chain
        jc      begun
        cmp     qword ptr [r8 + CHAIN_KIND], 0
        je      executed
        cmp     qword ptr [r8 + CHAIN_KIND], CONTROL_FRAMES
        je      find_context
        mov     rax, [r8 + CHAIN_STATE]
        mov     rcx, fs:[rax]
        test    rcx, rcx
        jz      begun
        mov     rax, [r8 + CHAIN_TOP]
        check   "rcx + rax", 8, damaged
        mov     rcx, [rcx + rax]
        cmp     qword ptr [r8 + CHAIN_THROUGH], 0
        je      segment
        test    rcx, rcx
        jz      begun
        check   rcx, 8, damaged
        mov     rcx, [rcx]
segment:                                        # rcx: the next frame of the chain; in CPython 3.11 the _PyCFrame
        cmp     qword ptr [r8 + CHAIN_KIND], C_FRAMES
        je      c_frame
        mov     [rsp + WALK + FRAME], rcx
        ja      begun
        mov     edx, 4096                       # limit of frames before the frame that is stored in the native frame
1:      test    rcx, rcx
        jz      anchored
        check   rcx, FRAME_BYTES, damaged
        mov     rax, [r8 + CHAIN_OWNER]
        cmp     byte ptr [rcx + rax], 3
        jae     2f
        mov     rax, [r8 + CHAIN_PREVIOUS]
        mov     rcx, [rcx + rax]
        dec     edx
        jnz     1b
        xor     ecx, ecx
2:      mov     rax, rcx
        jmp     anchored
c_frame:
        xor     eax, eax
        test    rcx, rcx
        jz      anchored
        check   rcx, 24, damaged
        mov     rax, [rcx + 8]
        mov     [rsp + WALK + FRAME], rax
        mov     rax, [rcx + 16]
        test    rax, rax
        jz      anchored
        check   rax, 16, damaged
        mov     rax, [rax + 8]
anchored:                                       # rcx: an address in the native frame. The chain ends if it is not above the previous one
        mov     [rsp + WALK + STOP], rax
        cmp     rcx, [rsp + WALK + ANCHOR]
        ja      3f
        xor     ecx, ecx
3:      mov     [rsp + WALK + ANCHOR], rcx
begun:
        cmp     qword ptr [r8 + CHAIN_KIND], PAIRED
        je      paired
        ja      control_frame
        mov     rcx, [rsp + WALK + ANCHOR]
        test    rcx, rcx
        jz      executed
        cmp     rcx, r9
        jb      next_segment
        cmp     rcx, [rsp + 16]
        jae     executed
next_frame:
        mov     rcx, [rsp + WALK + FRAME]
        test    rcx, rcx
        jz      next_segment
        cmp     rcx, [rsp + WALK + STOP]
        je      next_segment
        cmp     r15w, 1
        je      executed
        add_python_frame FRAME_BYTES
        jmp     next_frame
next_segment:
        mov     rcx, [rsp + WALK + ANCHOR]
        mov     rax, [r8 + CHAIN_PREVIOUS]
        cmp     qword ptr [r8 + CHAIN_KIND], C_FRAMES
        jne     4f
        mov     eax, 16
4:      check   "rcx + rax", 8, damaged
        mov     rcx, [rcx + rax]
        jmp     segment
paired:
        cmp     r15w, 1
        je      executed
        mov     rcx, [rsp + WALK + FRAME]
        test    rcx, rcx
        jz      unpaired
        add_python_frame PAIRED_BYTES
        jmp     executed
damaged:                                        # the rest of the chain cannot be read
        mov     qword ptr [rsp + WALK + FRAME], 0
        mov     qword ptr [rsp + WALK + ANCHOR], 0
        mov     qword ptr [rsp + WALK + STOP], 0
unpaired:                                       # the chain has ended too early, so the pairs of frames cannot be trusted
        mov     r11, 3 << NUMBERED
        call    node
        jc      managed_full
executed:
        clc
managed_full:
        pop     rdx
        pop     rdi
        pop     rbx
        ret

# Add a node for the Python function that the frame rcx executes, if there is one. Carry: the table is full. Clobbers r11 and the registers
# that `node` and `rule` clobber.
python_frame:
        mov     rax, [r8 + CHAIN_CODE]
        mov     rbx, [rcx + rax]
        and     rbx, -8                         # in CPython 3.14, the low bits of references are tags
        jz      unknown_code
        check   rbx, CODE_BYTES, unproven
        mov     rax, [r8 + CHAIN_TYPE]
        cmp     [rbx + 8], rax
        jne     unknown_code
        mov     rax, [r8 + CHAIN_INSTRUCTION]
        mov     rax, [rcx + rax]
        cmp     qword ptr [r8 + CHAIN_KIND], PAIRED
        je      1f
        sub     rax, rbx                        # from the address of the instruction to its offset
1:      mov     [rsp + WALK + 8 + BYTECODE], eax
        mov     rax, [r8 + CHAIN_VERSION]
        test    rax, rax
        jz      content
        mov     eax, [rbx + rax]
        test    eax, eax
        jz      no_version
identified:                                     # rax differs between code objects that have had the same address
        btr     r15d, UNREADABLE
        jc      unproven
        mov     rdi, rbx
        imul    rdi, [r8 + GOLDEN]
        rol     rdi, 32
        xor     rdi, rax
        imul    rdi, [r8 + GOLDEN]
        shr     rdi, 5
        bts     rdi, NUMBERED
        bts     rdi, VALUE
        mov     r11, rbx                        # the server reads the code object at r11; it cannot be freed while this thread waits
        call    rule
        jc      unproven
        mov     r11d, [rsp + WALK + 8 + BYTECODE]
        or      r11, rax                        # the upper half of rax is the number of the function
numbered:
        bts     r11, NUMBERED
        bts     r11, VALUE
        dec     r15w
        call    node
        ret
unproven:                                       # the function cannot be named
        btr     r15d, UNREADABLE
        movabs  r11, UNKNOWN_FUNCTION << 32
        jmp     numbered
unknown_code:                                   # no function; the frame counts, because in a damaged process such frames may form a cycle
        dec     r15w
        clc
        ret

no_version:                                     # in code objects of the interpreter itself, name and file are the same string object
        mov     rdi, [r8 + CHAIN_TEXTS]
        movzx   ecx, dil
        mov     rax, [rbx + rcx]
        shr     rdi, 8
        movzx   ecx, dil
        cmp     rax, [rbx + rcx]
        je      unknown_code
        jmp     unproven

# Set rax to a hash of the data that determine the names and lines of the code object rbx.
content:
        cmp     qword ptr [rbx], 0              # it is being freed
        jle     unproven
        mov     rax, [r8 + CHAIN_LINE]
        mov     eax, [rbx + rax]
        mov     rdi, [r8 + CHAIN_TEXTS]
2:      movzx   ecx, dil
        mov     rcx, [rbx + rcx]
        check   rcx, 36, unproven
        mov     rdx, [rcx + 16]                 # ob_size, or the length of the text
        lea     rsi, [rcx + 32]
        shr     rdi, 8
        jz      4f                              # the last object is a bytes object
        mov     ebp, [rcx + 32]                 # PyASCIIObject.state: interned (2 bits), kind (3 bits), compact, ascii
        bt      ebp, 5
        jnc     unproven
        lea     rsi, [rcx + 48]
        bt      ebp, 6
        jc      4f
        lea     rsi, [rcx + 72]
        shr     ebp, 2
        and     ebp, 7
        imul    rdx, rbp
4:      call    mix
        test    rdi, rdi
        jnz     2b
        jmp     identified

# Mix the length rdx and the first rdx bytes at rsi (at most MOST_HASHED) into rax. Clobbers rcx, rdx, rsi, rbp.
mix:
        xor     rax, rdx
        mov     ecx, MOST_HASHED
        cmp     rdx, rcx
        cmova   rdx, rcx
        test    edx, edx
        jz      1f
        push    rdx
        mov     rcx, rsi
        add     edx, 7                          # whole words are read
        and     edx, -8
        call    readable
        pop     rdx
        jc      3f
1:      imul    rax, [r8 + GOLDEN]
        rol     rax, 29
        sub     rdx, 8
        jb      2f
        xor     rax, [rsi]
        add     rsi, 8
        jmp     1b
2:      add     edx, 8
        jz      3f
        mov     ecx, 8
        sub     ecx, edx
        shl     ecx, 3
        mov     rbp, [rsi]
        shl     rbp, cl
        xor     rax, rbp
        imul    rax, [r8 + GOLDEN]
        rol     rax, 29
3:      ret

# Carry: at the end of the stack, frames of the chain are left that native frames should have executed. Ruby's outermost frame, and C
# functions that a thread calls first, need no native frame.
rest:
        mov     rcx, [rsp + 8 + FRAME]
        cmp     qword ptr [r8 + CHAIN_KIND], PAIRED
        je      2f
1:      cmp     rcx, [rsp + 8 + STOP]
        jae     3f
        check   rcx, 40, 4f
        cmp     qword ptr [rcx + 16], 0
        je      5f
        mov     rax, [rcx + 32]
        check   rax, 4, 4f
        mov     eax, [rax]
        and     eax, 0x7fff0001
        cmp     eax, 0x79990001                 # VM_FRAME_MAGIC_DUMMY
        jne     4f
5:      add     rcx, [r8 + RUBY_FRAME]
        jmp     1b
2:      test    rcx, rcx
        jnz     4f
3:      clc
        ret
4:      stc
        ret

# Add a node for the JavaScript functions that a frame executes. esi is the offset in the frame's rule. For code that V8 generated, it is
# GENERATED plus the distance of the return address from the beginning of the code. For the interpreter, it is GENERATED. Other offsets mean
# native code that moves objects: set MOVING, and add no node.
js_frame:
        cmp     esi, GENERATED + (1 << 30)
        jl      1f
        bts     r15d, MOVING
        jmp     executed
1:      bt      r15d, MOVING
        jc      executed
        bt      r15d, INTERRUPTED               # the signal may have interrupted code that moves objects
        jc      executed
        cmp     r15w, 1
        je      executed
        lea     rcx, [r10 - 16]
        cmp     rcx, r9
        jb      executed
        mov     rcx, [r10 - 8]                  # the context; frames of other code have the frame's type there, a small integer
        call    js_object
        jc      executed
        mov     rcx, [r10 - 16]
        mov     rdi, [r8 + TYPES]
        call    js_object
        jc      executed
        sub     ax, di
        shr     rdi, 16
        cmp     ax, di
        ja      executed
        shr     rdi, 16
        mov     rax, fs:[0]
        add     rax, [r8 + ISOLATE_AT]
        mov     rax, [rax]
        mov     rbp, rax                        # kept for the server, which needs the isolate to name the functions
        mov     rdx, [rcx - 1]                  # the map determines whether the function has a name of its own
        call    js_mix
        mov     rdx, [rdx + 8 - 1]              # its lowest bytes: words of the object, and words before the first property inside it
        call    js_mix
        push    rcx
        movzx   ebx, dh
        lea     rcx, [rcx + 8 * rbx - 1]
        mov     bl, 2                           # such a name is one of the first two properties: V8 before 9.5 has the home object, too
5:      cmp     dh, dl
        jae     6f
        check   rcx, 8, 6f
        push    rcx
        push    rdx
        mov     rcx, [rcx]
        call    js_mix_text
        pop     rdx
        pop     rcx
        add     rcx, 8
        inc     dh
        dec     bl
        jnz     5b
6:      pop     rcx
        mov     rdx, [r8 + SHARED_AT]
        check   "rcx + rdx - 1", 8, executed
        mov     rcx, [rcx + rdx - 1]
        call    js_typed
        jc      executed
        mov     rdx, [r8 + FLAGS_AT]
        check   "rcx + rdx - 1", 8, executed
        mov     rdx, [rcx + rdx - 1]
        call    js_mix
        mov     rdx, [r8 + SCRIPT_AT]
        check   "rcx + rdx - 1", 8, executed
        mov     rcx, [rcx + rdx - 1]
        call    js_typed
        jc      executed
        mov     rdx, [r8 + NUMBER_AT]
        check   "rcx + rdx - 1", 8, executed
        mov     rdx, [rcx + rdx - 1]
        call    js_mix
        mov     rbx, rcx
        check   "rbx + 8 - 1", 16, executed
        mov     rcx, [rbx + 8 - 1]              # the source
        call    js_mix_head
        mov     rcx, [rbx + 16 - 1]             # the name
        call    js_mix_head
        and     esi, 0x7fffffff
        jnz     2f
        mov     rdx, [r8 + OFFSET_AT]
        lea     rcx, [r10 + rdx]
        cmp     rcx, r9
        jb      executed
        mov     rdx, [rcx]
        call    js_mix
        jmp     3f
2:      mov     rdx, r11                        # compiled code: its contents are hashed, too, because it may replace other code
        call    js_mix
        mov     ecx, esi
        cmp     ecx, 64
        jb      executed
        mov     rsi, r11
        sub     rsi, rcx
        mov     rdx, rsi
        xor     rdx, r11
        shr     rdx, 18                         # the beginning of the code is surely mapped only if it is in the same page of V8 (256 KiB)
        jnz     executed
        push    rbp
        push    rsi
        mov     edx, 64
        call    mix                             # the header, and up to 1 KiB of the code before the return address
        pop     rsi
        lea     rcx, [r11 - 1024]
        cmp     rsi, rcx
        cmovb   rsi, rcx
        mov     rdx, r11
        sub     rdx, rsi
        and     edx, -8
        call    mix
        pop     rbp
3:      bt      r15d, UNREADABLE
        jc      executed
        shr     rax, 5
        mov     rdi, rax
        bts     rdi, NUMBERED
        bts     rdi, VALUE
        push    r9
        mov     r9, rbp                         # the server gets the isolate, the frame pointer and the return address
        call    rule
        pop     r9
        jc      executed
        mov     r11, rax
        bts     r11, NUMBERED
        bts     r11, VALUE
        dec     r15w
        call    node
        jmp     managed_full

# Set eax to the instance type of the object with the tagged address rcx. Carry: rcx is not the tagged address of an object. Clobbers rdx.
js_object:
        mov     edx, ecx
        and     edx, 3
        cmp     edx, 1
        jne     1f
        mov     rdx, rcx
        shr     rdx, 32
        jz      1f                              # an address below 4 GiB: V8's heap is above, and this may be a 32-bit number
        shr     rdx, 15
        jnz     1f
        check   "rcx - 1", 8, 1f
        mov     rdx, [rcx - 1]
        mov     eax, edx
        and     eax, 3
        cmp     eax, 1
        jne     1f                              # the object has been moved
        mov     rax, rdx                        # the map: an address of V8's, too
        shr     rax, 32
        jz      1f
        shr     rax, 15
        jnz     1f
        check   "rdx - 1", 16, 1f
        movzx   eax, word ptr [rdx + 12 - 1]
        clc
        ret
1:      stc
        ret

# Check the type of the object rcx. Carry: it is not the type in the lowest two bytes of rdi. Otherwise this type is shifted out of rdi.
# Preserves rax.
js_typed:
        push    rax
        call    js_object
        jc      1f
        cmp     ax, di
        jne     2f
        shr     rdi, 16
        pop     rax
        clc
        ret
2:      stc
1:      pop     rax
        ret

# Mix the hash and the length of the string rcx into rax, or 0 if rcx is not an object. Clobbers rdx.
js_mix_head:
        push    rax
        call    js_object
        pop     rax
        mov     edx, 0
        jc      js_mix
        check   "rcx + 8 - 1", 8, js_mix
        mov     rdx, [rcx + 8 - 1]
# Mix rdx into rax.
js_mix:
        xor     rax, rdx
        imul    rax, [r8 + GOLDEN]
        rol     rax, 29
        ret

# Mix the characters of the string rcx into rax, if it is a sequential string, or is composed of such strings, in at most COMPOSED steps. Clobbers
# rcx, rdx.
js_mix_text:
        push    rbx
        mov     ebx, COMPOSED
1:      call    js_string
        cmp     edx, 5                          # a reference to an equal string
        je      3f
        cmp     edx, 1                          # two strings; the first one may be composed, too
        jne     2f
        check   "rcx + 24 - 1", 8, 2f
        push    rcx
        mov     rcx, [rcx + 24 - 1]
        call    js_mix_sequential
        pop     rcx
3:      check   "rcx + 16 - 1", 8, 2f
        mov     rcx, [rcx + 16 - 1]
        dec     ebx
        jnz     1b
        pop     rbx
        ret
2:      pop     rbx
# Mix the characters of the string rcx into rax, if it is a sequential string. Clobbers rcx, rdx.
js_mix_sequential:
        call    js_string
        test    edx, ~8                         # kStringEncodingMask: characters of one byte
        jnz     2f
        check   "rcx + 12 - 1", 4, 2f
        push    rsi
        push    rbp
        lea     rsi, [rcx + 16 - 1]
        cmp     edx, 8
        mov     edx, [rcx + 12 - 1]
        je      1f
        add     rdx, rdx
1:      mov     ebp, MOST_HASHED
        cmp     rdx, rbp
        cmovb   rbp, rdx
        lea     rbp, [rcx + rbp + 16 - 2]       # the last byte that is hashed: it is in the same page of V8 (256 KiB)
        xor     rbp, rcx
        shr     rbp, 18
        jnz     3f
        call    mix
3:      pop     rbp
        pop     rsi
2:      ret

# Set edx to the representation of the string rcx (0: sequential, 1: two strings, 5: a reference to a string), or to 8 if it is sequential and
# has characters of one byte. edx is -1 if rcx is not a string. Preserves rax.
js_string:
        push    rax
        call    js_object
        mov     edx, -1
        jc      1f
        cmp     eax, [r8 + NO_STRING]
        jae     1f
        mov     edx, eax
        and     edx, 15                         # kStringRepresentationMask | kStringEncodingMask
        and     eax, 7
        cmovnz  edx, eax
1:      pop     rax
        ret

# Find the execution context of the thread (rb_execution_context_t). Its first words are: stack of values, length of this stack, innermost
# control frame, innermost tag. The tag is on the native stack.
find_context:
        mov     rcx, [r8 + RUBY_WHERE]
        mov     rdx, [r8 + RUBY_MODULE]
        test    rdx, rdx
        jz      1f
        js      2f
        mov     rax, fs:[8]                     # the dynamic thread vector of glibc: {address of the variables, …}
        cmp     rdx, [rax - 16]
        ja      executed
        shl     rdx, 4
        mov     rax, [rax + rdx]
        lea     rdx, [rax + 1]
        cmp     rdx, 1
        jbe     executed                        # the thread has no such variables yet
        add     rcx, rax
        jmp     2f
1:      add     rcx, fs:[0]
2:      mov     rdi, [rcx]
        test    rdi, rdi
        jz      executed
        check   rdi, 32, damaged
        mov     rcx, [rdi + 24]
        call    inside
        jc      executed
        mov     rax, [rdi]
        mov     [rsp + WALK + ANCHOR], rax
        mov     rdx, [rdi + 8]
        lea     rax, [rax + 8 * rdx]
        mov     [rsp + WALK + STOP], rax
        mov     rax, [rdi + 16]
        mov     [rsp + WALK + FRAME], rax
control_frame:                                  # add nodes up to the frame with the flag FINISH
        mov     rcx, [rsp + WALK + FRAME]
        cmp     rcx, [rsp + WALK + STOP]
        jae     unpaired
        check   rcx, 40, damaged
        mov     rax, [rcx + 32]
        check   "rax - 16", 24, damaged
        mov     rax, [rcx + 8]                  # the frame's stack pointer must be inside the stack of values
        cmp     rax, [rsp + WALK + ANCHOR]
        jb      damaged
        cmp     rax, rcx
        ja      damaged
        cmp     r15w, 1
        je      executed
        call    ruby_frame
        jc      managed_full
        mov     rcx, [rsp + WALK + FRAME]
        mov     rax, [rcx + 32]
        add     rcx, [r8 + RUBY_FRAME]
        mov     [rsp + WALK + FRAME], rcx
        test    byte ptr [rax], 0x20
        jz      control_frame
        jmp     executed

# Add a node for the method or block of the control frame rcx (rb_control_frame_t), as python_frame does.
ruby_frame:
        mov     rbx, [rcx + 16]
        mov     rdx, [rcx + 32]
        test    rbx, rbx
        jz      c_method
        mov     rsi, [rcx]                      # the next instruction
        test    rsi, rsi
        jz      unknown_code
        check   rbx, 24, unproven
        mov     eax, [rbx]
        and     eax, 0xf01f
        cmp     eax, 0x701a                     # T_IMEMO, imemo_iseq; another type while the garbage collector moves objects
        jne     unproven
        mov     eax, [rdx]
        test    al, al
        js      unknown_code                    # a function of C
        and     eax, 0x7fff0001
        cmp     eax, 0x79990001
        je      unknown_code
        mov     rdi, [rbx + 16]                 # struct rb_iseq_constant_body: type, size, instructions
        check   rdi, 16, unproven
        sub     rsi, [rdi + 8]
        mov     [rsp + WALK + 8 + BYTECODE], esi
        mov     rax, [rdi + 8]
        xor     rax, [rdi]
        mov     rcx, [r8 + RUBY_LOCATION]
        add     rcx, rdi
        check   rcx, 24, unproven
        push    rcx
        mov     rcx, [rcx]
        check   rcx, 32, 7f
        mov     edx, [rcx]
        and     edx, 31
        cmp     edx, 7                          # T_ARRAY: it contains the path and the real path
        jne     1f
        test    byte ptr [rcx + 1], 0x20        # RARRAY_EMBED_FLAG
        jz      7f
        mov     rcx, [rcx + 16]
1:      call    mix_string
        mov     rcx, [rsp]
        mov     rcx, [rcx + 16]
        call    mix_string
        pop     rcx
        mov     rcx, [r8 + RUBY_LINES]
        add     rcx, rdi
        check   rcx, 32, unproven
        mov     rsi, [rcx]
        mov     edx, [rcx + 16]
        imul    rdx, [r8 + RUBY_ENTRY]
        push    rcx
        test    rsi, rsi
        jz      2f
        call    mix
2:      pop     rcx
        mov     rsi, [rcx + 24]
        mov     edx, [rdi + 4]
        sub     edx, 54
        jg      3f
        add     edx, 54 + 8
        imul    edx, edx, 57                    # divided by 9
        shr     edx, 9
        shl     edx, 3
        jmp     4f
3:      add     edx, 511
        shr     edx, 9
        imul    edx, edx, 80
        add     edx, 48
4:      test    rsi, rsi
        jz      5f
        call    mix
5:      jmp     identified
7:      pop     rcx
        jmp     unproven

# Handle a method that is written in C. Its environment is {…, method entry, …, flags}; rdx points to the flags.
c_method:
        mov     eax, [rdx]
        and     eax, 0x7fff0001
        cmp     eax, 0x55550001                 # VM_FRAME_MAGIC_CFUNC
        jne     unknown_code
        mov     rbx, [rdx - 16]
        test    rbx, rbx
        jz      unproven
        test    bl, 7
        jnz     unproven
        check   rbx, 24, unproven
        mov     eax, [rbx]
        and     eax, 0xf01f
        cmp     eax, 0x601a                     # T_IMEMO, imemo_ment
        jne     unproven
        mov     rax, [rbx + 16]                 # the definition
        check   rax, 40, unproven
        mov     rax, [rax + 32]                 # original_id
        mov     dword ptr [rsp + WALK + 8 + BYTECODE], 0
        jmp     identified

# Mix the String rcx into rax. Ignore an object of another type, which the server does not name. Clobbers rcx, rdx, rsi, rbp.
mix_string:
        check   rcx, 32, 1f
        mov     edx, [rcx]
        and     edx, 31
        cmp     edx, 5                          # T_STRING
        jne     1f
        mov     rdx, [rcx + 16]
        mov     rsi, [rcx + 24]
        test    byte ptr [rcx + 1], 0x20        # RSTRING_NOEMBED
        jnz     mix
        lea     rsi, [rcx + 24]
        cmp     qword ptr [r8 + RUBY_LENGTHS], 0
        jne     mix
        lea     rsi, [rcx + 16]                 # up to 23 bytes and a terminating zero
        mov     edx, 24
        jmp     mix
1:      ret
        .endm
