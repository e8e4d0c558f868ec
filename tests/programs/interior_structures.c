/* Structures that are held by a pointer to their inside, laid out as libraries do, and damaged ones. Writes the lines of truth.c.
 *
 *   interior_structures [SEED]
 *
 * The structures: hash tables of hashbrown and of Abseil, each entry of which refers to a block; values of Arc; chunks of a pmr resource;
 * memory that the program aligned, with the address of its block before it. All of these are reachable. If one detail is wrong, a
 * structure is not recognised, and it is possibly lost, with all blocks that it refers to. */
#include "truth.h"

#define VALUE 72

static void *volatile roots[4096];
static unsigned root_count;

enum damage { INTACT, ITEMS, GROWTH, MASK, CLONES, CONTROL, SHIFTED, HEADLESS, DAMAGES };
static const char *const names[] = {"intact", "items", "growth", "mask", "clones", "control", "shifted", "headless"};

static void entry(struct rng *r, unsigned char *at, size_t size, const char *kind, const char *category) {
    if (size < WORD) return;
    struct block value = make(r, VALUE);
    memcpy(at, &value.p, WORD);
    note(value, kind, NULL, category);
    value.p = NULL;
}

static struct block zeroed(size_t size) {
    struct block b = {malloc(size), size, 0};
    if (!b.p) abort();
    memset(b.p, 0, malloc_usable_size(b.p));
    return b;
}

/* {pointer, mask, growth, items} in a block that a root holds, or only the pointer. */
static void head(void *pointer, size_t mask, size_t growth, size_t items, int alone) {
    struct block b = zeroed(10 * WORD);
    uintptr_t volatile *words = b.p;
    words[4] = (uintptr_t)pointer;
    if (!alone) {
        words[5] = mask;
        words[6] = growth;
        words[7] = items;
    }
    roots[root_count++] = b.p;
    note_reachable(b, "head");
}

/* `some`: how many of eight buckets are full; a few others are deleted. */
static NOINLINE void hashbrown(struct rng *r, size_t size, size_t buckets, unsigned some, enum damage damage) {
    const size_t width = 16, offset = (size * buckets + width - 1) / width * width;
    struct block b = zeroed(offset + buckets + width);
    unsigned char *control = (unsigned char *)b.p + offset;
    const char *kind = damage ? "possible" : "reachable";
    size_t capacity = buckets <= 8 ? buckets - 1 : buckets / 8 * 7, items = 0, deleted = 0;
    memset(control, 0xff, buckets + width);
    for (size_t i = 0; i < buckets; i++) {
        if (items + deleted < capacity && draw(r, 8) < some) {
            control[i] = (unsigned char)draw(r, 128);
            items++;
            entry(r, control - (i + 1) * size, size, kind, "hashbrown-entry");
        } else if (items + deleted < capacity && some && draw(r, 8) == 0) {
            control[i] = 0x80;
            deleted++;
        }
    }
    for (size_t i = 0; i < (buckets < width ? buckets : width); i++) control[(buckets < width ? width : buckets) + i] = control[i];
    size_t growth = capacity - items - deleted, mask = buckets - 1;
    switch (damage) {
    case ITEMS: items += items ? (size_t)-1 : 1; break;
    case GROWTH: growth = growth ? growth - 1 : 1; break;
    case MASK: mask--; break;
    case CLONES: control[(buckets < width ? width : buckets) + 1] ^= 1; break;
    case CONTROL: control[buckets / 2] = 0xfe; break;
    case SHIFTED: control -= width; break;
    default: break;
    }
    note(b, kind, NULL, damage ? names[damage] : "hashbrown");
    head(control, mask, growth, items, damage == HEADLESS);
}

/* As Abseil has it since 20230802: growth, control bytes, 0xff, clones, entries; {control, entries, capacity, size}. */
static NOINLINE void swiss(struct rng *r, size_t size, size_t capacity, unsigned some, enum damage damage) {
    const size_t width = 16, offset = (WORD + capacity + width + WORD - 1) / WORD * WORD;
    struct block b = zeroed(offset + size * capacity);
    unsigned char *control = (unsigned char *)b.p + WORD, *entries = (unsigned char *)b.p + offset;
    const char *kind = damage ? "possible" : "reachable";
    size_t most = capacity - capacity / 8, items = 0, deleted = 0, growth;
    memset(control, 0x80, capacity + width);
    for (size_t i = 0; i < capacity; i++) {
        if (items + deleted < most && draw(r, 8) < some) {
            control[i] = (unsigned char)draw(r, 128);
            items++;
            entry(r, entries + i * size, size, kind, "swiss-entry");
        } else if (items + deleted < most && some && draw(r, 8) == 0) {
            control[i] = 0xfe;
            deleted++;
        }
    }
    control[capacity] = 0xff;
    for (size_t i = 0; i < (capacity < width - 1 ? capacity : width - 1); i++) control[capacity + 1 + i] = control[i];
    growth = most - items - deleted;
    switch (damage) {
    case GROWTH: growth = growth ? growth - 1 : 1; break;
    case CLONES: control[capacity + 1] ^= 1; break;
    case CONTROL: control[capacity / 2] = 0x81; break;
    case MASK: control[capacity] = 0x80; break;
    case SHIFTED: control += WORD; break;
    default: break;
    }
    memcpy((unsigned char *)b.p, &growth, WORD);
    note(b, kind, NULL, damage ? names[damage] : "swiss");
    head(control, (size_t)entries, capacity, items << 1, damage == HEADLESS);
}

/* {strong, weak, value}, held by a pointer to the value, which holds another block. */
static NOINLINE void counted(struct rng *r, uintptr_t strong, uintptr_t weak, int sound) {
    struct block b = zeroed(13 * WORD);
    uintptr_t *words = b.p;
    words[0] = strong;
    words[1] = weak;
    entry(r, (unsigned char *)(words + 5), WORD, sound ? "reachable" : "possible", "counted-value");
    roots[root_count++] = words + 2;
    note(b, sound ? "reachable" : "possible", NULL, "counted");
}

/* Makes memory that is aligned to `align` bytes in a block. The address of the block, plus `wrong`, is stored `distance` words before the
 * memory. Several words are recognised only before a page. */
static NOINLINE void aligned(struct rng *r, size_t align, unsigned distance, uintptr_t wrong) {
    const char *kind = wrong || (distance > 1 && align < 4096) ? "possible" : "reachable";
    struct block b = zeroed(100 + align + distance * WORD);
    uintptr_t *memory = (uintptr_t *)(((uintptr_t)b.p + distance * WORD + align - 1) & ~(uintptr_t)(align - 1));
    memory[-(ptrdiff_t)distance] = (uintptr_t)b.p + wrong;
    entry(r, (unsigned char *)memory, WORD, kind, "aligned-value");
    roots[root_count++] = memory;
    note(b, kind, NULL, "aligned");
}

/* Chunks as libstdc++ links them: {size | log2 of the alignment, next} at the end of each. */
static NOINLINE void chunks(struct rng *r, unsigned count, size_t wrong) {
    const char *kind = wrong ? "possible" : "reachable";
    uintptr_t next = 0;
    size_t size = 128;
    for (unsigned i = 0; i < count; i++, size = size * 3 / 2 / 64 * 64) {
        struct block b = zeroed(size);
        uintptr_t *end = (uintptr_t *)((char *)b.p + size - 2 * WORD);
        end[0] = (size + wrong) | 3;
        end[1] = next;
        entry(r, b.p, WORD, kind, "chunk-entry");
        next = (uintptr_t)end;
        note(b, kind, NULL, "chunk");
    }
    roots[root_count++] = (void *)next;
}

/* Objects that have a link inside, followed by the number of bytes up to the end of the link, such as a capacity, and a null
 * pointer. They are not chunks: the size of a chunk has the logarithm of its alignment in the low bits. */
static NOINLINE void numbered_links(struct rng *r) {
    for (size_t size = 64; size <= 192; size += 64) {
        struct block b = zeroed(size + 8);
        uintptr_t *link = (uintptr_t *)((char *)b.p + size - 2 * WORD);
        link[0] = size;
        entry(r, b.p, WORD, "possible", "capacity-entry");
        roots[root_count++] = link;
        note(b, "possible", NULL, "capacity");
    }
}

static NOINLINE void strays(struct rng *r) {
    for (int i = 0; i < 300; i++) {
        struct block b = make(r, 200 + draw(r, 3000));
        roots[root_count++] = (char *)b.p + 1 + draw(r, b.requested - 1);
        note_possible(b, "stray");
    }
}

int main(int argc, char **argv) {
    static const size_t sizes[] = {1, 3, 8, 24, 40, 104}, buckets[] = {2, 4, 8, 16, 32, 128, 1024}, capacities[] = {1, 3, 7, 15, 31, 127, 1023};
    static hidden none[9];
    struct rng r;
    seed(&r, 88172645463325252u + (argc > 1 ? (uint64_t)atoi(argv[1]) : 0));
    for (unsigned at = 0; at < 7; at++)
        for (unsigned size = 0; size < 6; size++)
            for (unsigned some = 0; some < 8; some += 3) {
                hashbrown(&r, sizes[size], buckets[at], some, INTACT);
                swiss(&r, sizes[size], capacities[at], some, INTACT);
            }
    for (unsigned at = 3; at < 7; at++)
        for (enum damage damage = ITEMS; damage < DAMAGES; damage++) {
            hashbrown(&r, 24, buckets[at], 5, damage);
            if (damage != ITEMS) swiss(&r, 24, capacities[at], 5, damage);
        }
    for (unsigned i = 0; i < 8; i++) counted(&r, 1 + i % 3, 1 + i % 2, 1);
    counted(&r, 0, 1, 0);
    counted(&r, 1, 0, 0);
    counted(&r, (uintptr_t)1 << 20, 1, 0);
    for (size_t align = 32; align <= 4096; align *= 2) aligned(&r, align, 1, 0);
    for (unsigned distance = 2; distance < 9; distance++) aligned(&r, 4096, distance, 0);
    aligned(&r, 64, 1, 8);
    aligned(&r, 64, 2, 0);
    chunks(&r, 9, 0);
    chunks(&r, 3, 64);
    numbered_links(&r);
    strays(&r);
    scrub();
    stop(none, 1);
}
