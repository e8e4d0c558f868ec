/* Blocks that are the stack of a suspended coroutine, or the frame of a stackless one.
 *
 * Boost.Context (src/asm/jump_x86_64_sysv_elf_gas.S, 1.61 and newer): a suspended context is a
 * pointer to {MXCSR, x87 control word, [stack guard,] r12, r13, r14, r15, rbx, rbp, rip}.
 * Coroutine2 and Fiber keep a control block at the top of the stack, above this context, and refer
 * only to the control block. C++20 coroutines (GCC and Clang): a frame begins with {resume,
 * destroy}. If other memory refers to an awaiter inside the frame, the awaiter contains the
 * coroutine's handle, which is the address of the frame's start. */
#include "interior_structures.h"

#define LEAST_STACK 1024u
#define CONTROL_WORDS 64u /* maximum words of a control block */
#define AWAITER_WORDS 8u

static bool is_code(const range *code, uint32_t count, uint64_t address) { return address && in_ranges(code, count, address); }

/* Return whether a context is saved at `address`, which is in the block. Its rip is word 7, or 8
 * after a guard. */
static bool is_context(const memory *m, const candidate *c, uint64_t address, const range *code, uint32_t count) {
    uint64_t control, low, high;
    if (WORD != 8 || BIG || address % 8 || address < c->start || address > end_of(c) || end_of(c) - address < 9 * 8)
        return false;
    if (!read_word(m, address, &control) || !read_word(m, address + 7 * 8, &low) || !read_word(m, address + 8 * 8, &high))
        return false;
    /* All exceptions masked, as in a process that did not change them; reserved bits are 0. */
    bool floating = (control & 0xFFFF1F80u) == 0x1F80u && (control >> 32 & 0xE07Fu & ~0x40u) == 0x3Fu;
    return floating && (is_code(code, count, low) || is_code(code, count, high));
}

static bool is_stack(const memory *m, const candidate *c, const range *code, uint32_t count) {
    if (c->size < LEAST_STACK)
        return false;
    if (is_context(m, c, c->pointer, code, count))
        return true;
    if (c->pointer - c->start < c->size / 2) /* a control block is at the top */
        return false;
    for (uint64_t at = 0; at < CONTROL_WORDS; at++) {
        uint64_t value, address = c->pointer + at * WORD;
        if (address + WORD > end_of(c) || !read_word(m, address, &value))
            return false;
        if (value > c->start && value < c->pointer && is_context(m, c, value, code, count))
            return true;
    }
    return false;
}

static bool is_frame(const memory *m, const candidate *c, const range *code, uint32_t count) {
    uint64_t resume, destroy, value;
    if (c->size < 4 * WORD || !read_word(m, c->start, &resume) || !is_code(code, count, resume))
        return false;
    if (!read_word(m, c->start + WORD, &destroy) || resume == destroy || !is_code(code, count, destroy))
        return false;
    for (uint64_t at = 0; at < AWAITER_WORDS; at++) {
        uint64_t address = c->pointer + at * WORD;
        if (address + WORD <= end_of(c) && read_word(m, address, &value) && value == c->start)
            return true;
    }
    return false;
}

int stack_at(const memory *m, const candidate *c, const range *code, uint32_t code_count) {
    if (!code_count || c->pointer % WORD)
        return NOTHING;
    return is_stack(m, c, code, code_count) ? SAVED_CONTEXT : is_frame(m, c, code, code_count) ? COROUTINE_FRAME : NOTHING;
}
