/* A program that refers to its blocks by disguised pointers, and prints the expected result for each block.
 *
 *   disguised KIND COUNT [EVERY]
 *
 * writes the lines of truth.c: COUNT blocks that only pointers in the form KIND refer to, each of which refers to a string by a plain
 * pointer; a list whose links have that form, and whose first node no pointer refers to; and lost blocks of other sizes. KIND none: no
 * pointer at all. With "noise-" before it, the table has noise of that kind in place of pointers, and all blocks are lost. */
#include "truth.h"
#include "truth_stop.h"

#include <setjmp.h>
#include <stdio.h>
#include <ucontext.h>

enum { ITEM = 72, LOST = 136 };

static unsigned char *table; /* table of disguised pointers */
static uintptr_t base;       /* base of compressed pointers */
static uintptr_t first;      /* address of the first block: another base */
static size_t table_size;
static volatile uint32_t alone[2]; /* numbers that happen to be the compressed addresses of lost blocks */
static volatile uintptr_t distance;  /* a number that happens to be the distance to a lost block */

static void put(size_t at, const void *data, size_t size) { memcpy(table + at, data, size); }
static void put_word(size_t at, uint64_t word) { put(at, &word, 8); }

static void tagged(size_t i, uintptr_t p) { put_word(8 * i, p | (uint64_t)(i % 60000 + 1) << 48 | (i & 3)); }
static void low_bits(size_t i, uintptr_t p) { p |= i & (2 * WORD - 1); put(WORD * i, &p, WORD); }
static void nan_boxed(size_t i, uintptr_t p) { put_word(8 * i, p | UINT64_C(0xfff9) << 48); }
static void itype(size_t i, uintptr_t p) { put_word(8 * i, p | UINT64_C(0x1fff7) << 47); } /* of 17 bits */
static void top_byte(size_t i, uintptr_t p) { put_word(8 * i, p | (uint64_t)(i % 255 + 1) << 56); }
static void shifted(size_t i, uintptr_t p) { put_word(8 * i, (uint64_t)p << 16 | (i & 0xffff)); }
static void small(size_t i, uintptr_t p) { put_word(8 * i, (uint64_t)p << 1 | (i & 1)); }
static void pages(size_t i, uintptr_t p) { put_word(8 * i, (uint64_t)p >> 4); }
static void compressed(size_t i, uintptr_t p) { uint32_t word = (uint32_t)((p - base) >> 3); put(4 * i, &word, 4); }
static void compressed_by(size_t i, uintptr_t p, unsigned shift) { uint32_t word = (uint32_t)((p - base) >> shift); put(4 * i, &word, 4); }
static void compressed0(size_t i, uintptr_t p) { compressed_by(i, p, 0); }
static void compressed1(size_t i, uintptr_t p) { compressed_by(i, p, 1); }
static void compressed2(size_t i, uintptr_t p) { compressed_by(i, p, 2); }
static void compressed4(size_t i, uintptr_t p) { compressed_by(i, p, 4); }
static void compressed_from_block(size_t i, uintptr_t p) { uint32_t word = (uint32_t)((p - first) >> 4); put(4 * i, &word, 4); }
static void cage(size_t i, uintptr_t p) { uint32_t word = (uint32_t)p | 1; put(4 * i, &word, 4); }
static void packed(size_t i, uintptr_t p) { table[(WORD + 1) * i] = (unsigned char)i; put((WORD + 1) * i + 1, &p, WORD); }
static void halves(size_t i, uintptr_t p) { put(3 * WORD / 2 * i + WORD / 2, &p, WORD); }
static void page_crossing(size_t i, uintptr_t p) { put(4096 * (i + 1) - 3, &p, WORD); }
static void nothing(size_t i, uintptr_t p) { (void)i, (void)p; }

static uint64_t random_word(void) {
    static uint64_t state = 88172645463325252u;
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return state;
}

static void random_bytes(size_t i, uintptr_t p) { (void)p; for (int n = 0; n < 8; n++) put_word(64 * i + 8 * n, random_word()); }
static void letters(size_t i, uintptr_t p) { (void)p; for (int n = 0; n < 64; n++) table[64 * i + n] = (unsigned char)(' ' + random_word() % 95); }
static void counters(size_t i, uintptr_t p) { (void)p; for (uint32_t n = 0; n < 16; n++) { uint32_t word = 16 * (uint32_t)i + n; put(64 * i + 4 * n, &word, 4); } }
static void numbers(size_t i, uintptr_t p) { (void)p; for (int n = 0; n < 16; n++) { uint32_t word = random_word() & 0xffffff; put(64 * i + 4 * n, &word, 4); } }

#ifdef __x86_64__
static volatile uint64_t key = UINT64_C(0x8f1bbcdc5a82799e); /* a key that the program itself has */
static void keyed(size_t i, uintptr_t p) { put_word(8 * i, p ^ key); }
static void rotated(size_t i, uintptr_t p) { put_word(8 * i, (p ^ key) << 17 | (p ^ key) >> 47); }
static void swapped(size_t i, uintptr_t p) { put_word(8 * i, p << 32 | p >> 32); }
static void six_bytes(size_t i, uintptr_t p) { put(6 * i, &p, 6); }
static void tags_below(size_t i, uintptr_t p) { put_word(8 * i, p | (uint64_t)(i % 60000 + 1) << 48 | (i & 15)); }
static void tags_in_shifted(size_t i, uintptr_t p) { put_word(8 * i, (uint64_t)(p | (i & 15)) << 8 | (i & 0xff)); }
static void safe_linked(size_t i, uintptr_t p) { put_word(8 * i, p ^ (uintptr_t)(table + 8 * i) >> 12); }

/* Pointers relative to their own addresses. The distances between these addresses differ. */
static void relative(size_t i, uintptr_t p) {
    static size_t at;
    at += 8 * (1 + i * i % 5);
    put_word(at, p - (uintptr_t)(table + at));
}

static void swapped_bytes(size_t i, uintptr_t p) { put_word(8 * i, __builtin_bswap64(p)); }

/* Contexts that have not started. makecontext saves its arguments as 64-bit registers, each with one half of an address. */
static ucontext_t model;

static void start(unsigned low, unsigned high) { (void)low, (void)high; }

static void context(size_t i, uintptr_t p) {
    static char stack[4096];
    ucontext_t *made = (ucontext_t *)(table + sizeof *made * i);
    *made = model;
    made->uc_stack = (stack_t){.ss_sp = stack, .ss_size = sizeof stack};
    makecontext(made, (void (*)(void))start, 2, (unsigned)p, (unsigned)(p >> 32));
}

/* setjmp, called by a function that has `p` in rbp and no pointer in the other registers that setjmp saves. */
int save_in_rbp(jmp_buf at, uintptr_t p);
__asm__("save_in_rbp: push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15; sub $8, %rsp\n"
        "xor %ebx, %ebx; xor %r12d, %r12d; xor %r13d, %r13d; xor %r14d, %r14d; xor %r15d, %r15d; mov %rsi, %rbp; call _setjmp@PLT\n"
        "add $8, %rsp; pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp; ret\n");

static void jump(size_t i, uintptr_t p) { save_in_rbp(((jmp_buf *)table)[i], p); }

/* Odd addresses near the block, in two halves and in six bytes. (Odd, because an even one followed by two zero bytes would be a plain pointer.) */
static uintptr_t near(uintptr_t p) { return (p + random_word() % 0x4000 - 0x2000) | 1; }
static void random_halves(size_t i, uintptr_t p) { p = near(p); put_word(16 * i, (uint32_t)p), put_word(16 * i + 8, p >> 32); }
static void random_six_bytes(size_t i, uintptr_t p) { p = near(p); put(6 * i, &p, 6); }
#endif

static const struct { const char *name; void (*encode)(size_t, uintptr_t); } kinds[] = {
    {"tagged", tagged}, {"low", low_bits}, {"nan", nan_boxed}, {"itype", itype}, {"topbyte", top_byte}, {"shifted", shifted}, {"small", small}, {"pages", pages},
    {"compressed", compressed}, {"compressed0", compressed0}, {"compressed1", compressed1}, {"compressed2", compressed2}, {"compressed4", compressed4}, {"first", compressed_from_block}, {"cage", cage}, {"packed", packed}, {"halves", halves}, {"crossing", page_crossing}, {"none", nothing}, {"xor", nothing}, {"xor-ends", nothing},
#ifdef __x86_64__
    {"swapped", swapped}, {"six", six_bytes}, {"tags16", tags_below}, {"shifted16", tags_in_shifted}, {"safe", safe_linked}, {"relative", relative}, {"bytes", swapped_bytes}, {"context", context}, {"jump", jump}, {"keyed", keyed}, {"rotated", rotated}, {"noise-halves", random_halves}, {"noise-six", random_six_bytes},
#endif
    {"noise-random", random_bytes}, {"noise-text", letters}, {"noise-counters", counters}, {"noise-numbers", numbers},
};

static NOINLINE struct block plain(size_t size) {
    struct block b = {malloc(size), size, 0};
    if (!b.p) abort();
    memset(b.p, 0, malloc_usable_size(b.p));
    return b;
}

/* Of `every` blocks, the last one has no pointer. */
static NOINLINE void fill_table(void (*encode)(size_t, uintptr_t), size_t count, int kept, size_t every) {
    for (size_t i = 0; i < count; i++) {
        struct block item = plain(ITEM), text = plain(24);
        memset(text.p, 'x', 20);
        ((void **)item.p)[2] = text.p;
        int held = kept && (!every || i % every != every - 1);
        if (held || !kept) encode(i, (uintptr_t)item.p);
        if (held) {
            note_reachable(item, "disguised");
            note_reachable(text, "below");
        } else {
            note_definite(item, "unheld");
            note_indirect(text, item, "unheld");
        }
    }
}

/* Nodes whose link is the XOR of their neighbours' addresses; `table` refers to the last, or to both ends. */
static NOINLINE void link_by_xor(size_t count, int both) {
    struct block before = {0}, last = plain(ITEM);
    for (size_t i = 0; i < count; i++) {
        struct block next = i + 1 < count ? plain(ITEM) : (struct block){0};
        ((uintptr_t *)last.p)[1] = (uintptr_t)before.p ^ (uintptr_t)next.p;
        note_reachable(last, "linked");
        if (i + 1 == count) put(0, &last.p, WORD);
        if (i == 0 && both) put(1, &last.p, WORD);
        before = last, last = next;
    }
}

static NOINLINE void lose_some(void) {
    for (int i = 0; i < 40; i++) {
        struct block lost = plain(LOST + 16 * (i % 4));
        if (WORD == 8 && i < 2) alone[i] = i ? (uint32_t)(uintptr_t)lost.p | 1 : (uint32_t)(((uintptr_t)lost.p - base) >> 3);
        if (WORD == 8 && i == 2) distance = (uintptr_t)lost.p - (uintptr_t)&distance;
        note_definite(lost, "lost");
    }
}

int main(int argc, char **argv) {
    static hidden none[9];
    if (argc < 3) return 2;
    size_t count = (size_t)atoi(argv[2]);
    base = (uintptr_t)sbrk(0);
    if (!strcmp(argv[1], "first")) first = (uintptr_t)plain(1000).p, note_reachable((struct block){(void *)first, 1000, 0}, "first");
#ifdef __x86_64__
    getcontext(&model); /* before there are blocks whose addresses registers may contain */
#endif
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        if (strcmp(kinds[k].name, argv[1])) continue;
        table_size = (kinds[k].encode == page_crossing ? 4096 : 1024) * (count + 2);
        table = mmap(NULL, table_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (strncmp(argv[1], "xor", 3)) fill_table(kinds[k].encode, count, strcmp(argv[1], "none") && strncmp(argv[1], "noise", 5), argc > 3 ? (size_t)atoi(argv[3]) : 0);
        else link_by_xor(count, argv[1][3]);
        lose_some();
        scrub();
        stop(none, 1);
    }
    return 2;
}
