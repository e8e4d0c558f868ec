/* Follows linked lists, and finds words by value. */
#include "native.h"

#include <stdlib.h>

enum { END, CYCLE, UNREADABLE, MISALIGNED, TOO_LONG, LEAVES }; /* also in ../engine/shared.py */

#define LANES 32u /* lists side by side: each node is prefetched while others are visited */

/* Set of nodes: open addressing. 0 is an unused entry, as no node is at address 0. */
typedef struct {
    uint64_t *items;
    uint64_t count, mask;
} node_set;

static bool set_add(node_set *set, uint64_t node) {
    uint64_t place = (node * UINT64_C(0x9E3779B97F4A7C15) >> 20) & set->mask;
    while (set->items[place] && set->items[place] != node)
        place = (place + 1) & set->mask;
    bool fresh = !set->items[place];
    set->items[place] = node;
    set->count += fresh;
    return fresh;
}

static int set_reserve(node_set *set) {
    if (set->items && set->count <= set->mask / 2)
        return DONE;
    node_set wider = {NULL, 0, set->items ? set->mask * 4 + 3 : 63};
    wider.items = calloc(wider.mask + 1, sizeof *wider.items);
    if (!wider.items)
        return NO_MEMORY;
    for (uint64_t at = 0; set->items && at <= set->mask; at++)
        if (set->items[at])
            set_add(&wider, set->items[at]);
    free(set->items);
    *set = wider;
    return DONE;
}

const piece *piece_holding(const piece *pieces, uint64_t count, uint64_t address) {
    if (!count || pieces->address > address)
        return NULL;
    /* without branches: there may be thousands of pieces, and addresses come in no order */
    while (count > 1) {
        uint64_t half = count / 2;
        pieces += pieces[half].address <= address ? half : 0;
        count -= half;
    }
    return pieces;
}

const uint8_t *memory_at(const piece *pieces, uint64_t count, uint64_t address, uint64_t size) {
    return bytes_in(piece_holding(pieces, count, address), address, size);
}

const uint8_t *word_at(const piece *pieces, uint64_t count, uint64_t address) { return memory_at(pieces, count, address, WORD); }

/* A list that is followed on the assumption that it is intact. */
typedef struct {
    uint64_t node, found;
    /* Brent's algorithm: a cycle leads back to a node recorded at a power of two */
    uint64_t noted, turn;
    const uint8_t *next;  /* the link word of the node */
    const piece *now;     /* the piece that contains it */
    range within;         /* range in which nodes must be */
    words nodes;
    bool open, sound;
} lane;

typedef struct {
    const piece *pieces;
    uint64_t count;
    int64_t next_offset;
    bool mangled;
    uint64_t limit;
} road;

INLINE uint64_t link_of(const road *r, uint64_t node) { return (node + (uint64_t)r->next_offset) & HIGHEST; }

/* Prefetch the link of a lane's node, or close the lane. */
static void look(const road *r, lane *l) {
    uint64_t place = link_of(r, l->node), offset = place - l->now->address;
    l->open = false;
    if (!l->node)
        return;
    l->sound = false;
    if (l->node == l->noted || l->node % WORD || l->found >= r->limit || l->node < l->within.start || l->node >= l->within.end)
        return;
    if (offset >= l->now->length || l->now->length - offset < WORD) {
        const piece *p = piece_holding(r->pieces, r->count, place);
        if (!p || !word_at(p, 1, place))
            return;
        l->now = p;
        offset = place - p->address;
    }
    l->open = l->sound = true;
    l->next = l->now->data + offset;
    __builtin_prefetch(l->next);
}

static int step(const road *r, lane *l) {
    if (words_push(&l->nodes, l->node))
        return NO_MEMORY;
    if (++l->found == l->turn) {
        l->noted = l->node;
        l->turn *= 2;
    }
    l->node = load(l->next) ^ (r->mangled ? link_of(r, l->node) >> 12 : 0);
    look(r, l);
    return DONE;
}

static const range everywhere = {0, UINT64_MAX};

/* Follow lists side by side. Lists that end properly have their nodes stored, and are marked
 * `sound`. */
static int follow_sound(const road *r, lane *lanes, const uint64_t *heads, const range *within, uint64_t lists) {
    bool on = false;
    for (uint64_t at = 0; at < lists; at++) {
        words nodes = {lanes[at].nodes.items, 0, lanes[at].nodes.capacity};
        lanes[at] = (lane){heads[at], 0, 0, 1, NULL, r->pieces, within ? within[at] : everywhere, nodes, false, !heads[at]};
        if (r->count)
            look(r, &lanes[at]);
        on = on || lanes[at].open;
    }
    while (on) {
        on = false;
        for (lane *l = lanes; l < lanes + lists; l++) {
            if (l->open && step(r, l))
                return NO_MEMORY;
            on = on || l->open;
        }
    }
    return DONE;
}

/* Append the nodes of the list at *head. Returns why the list ended there; negative if out of
 * memory. */
static int follow(const road *r, uint64_t *head, const range *within, words *nodes) {
    node_set seen = {NULL, 0, 0};
    int code = END;
    uint64_t node = *head, found = 0;
    while (node) {
        uint64_t place = link_of(r, node);
        const uint8_t *next = word_at(r->pieces, r->count, place);
        if (set_reserve(&seen)) {
            code = NO_MEMORY;
            break;
        }
        if (!set_add(&seen, node))
            code = CYCLE;
        else if (node % WORD)
            code = MISALIGNED;
        else if (!next)
            code = UNREADABLE;
        else if (found >= r->limit)
            code = TOO_LONG;
        else if (node < within->start || node >= within->end)
            code = LEAVES;
        else if (words_push(nodes, node))
            code = NO_MEMORY;
        if (code)
            break;
        found++;
        node = load(next) ^ (r->mangled ? place >> 12 : 0);
    }
    free(seen.items);
    *head = node;
    return code;
}

int follow_list(const piece *pieces, uint64_t count, uint64_t *head, int64_t next_offset, bool mangled, uint64_t limit, words *nodes) {
    const road r = {pieces, count, next_offset, mangled, limit};
    return follow(&r, head, &everywhere, nodes);
}

/* Return the nodes of a list (free them with fl_free), and why it ended at *head; negative if
 * out of memory. */
API int fl_follow(const piece *pieces, uint64_t count, uint64_t *head, int64_t next_offset, bool mangled, uint64_t limit, words *nodes) {
    return follow_list(pieces, count, head, next_offset, mangled, limit, nodes);
}

/* Follow the lists that begin at heads[first] to heads[last - 1]: at most LANES lists. Append their
 * nodes to `nodes`, until it has `most` nodes. */
static int follow_some(const road *whole, uint64_t most, lane *lanes, const uint64_t *heads, const range *within, uint64_t first,
                       uint64_t last, words *nodes, uint64_t *ends, words *problems) {
    road r = *whole;
    r.limit = most - nodes->count < whole->limit ? most - nodes->count : whole->limit;
    if (follow_sound(&r, lanes, heads + first, within ? within + first : NULL, last - first))
        return NO_MEMORY;
    for (uint64_t at = first; at < last; at++) {
        const lane *l = &lanes[at - first];
        uint64_t node = heads[at];
        int code = END;
        r.limit = most - nodes->count < whole->limit ? most - nodes->count : whole->limit;
        bool sound = l->sound && l->nodes.count <= r.limit;
        /* Storing each node in a set costs more than following. It is done only for damaged
         * lists. */
        if (!sound && (code = follow(&r, &node, within ? &within[at] : &everywhere, nodes)) < 0)
            return code;
        for (uint64_t place = 0; sound && place < l->nodes.count; place++)
            if (words_push(nodes, l->nodes.items[place]))
                return NO_MEMORY;
        ends[at] = nodes->count;
        if (code && PUSH_ALL(problems, at, (uint64_t)code, node))
            return NO_MEMORY;
    }
    return DONE;
}

uint64_t count_words(const piece *pieces, uint64_t count) {
    uint64_t found = 0;
    for (uint64_t at = 0; at < count; at++)
        found += pieces[at].length / WORD;
    return found;
}

int follow_lists(const piece *pieces, uint64_t count, const uint64_t *heads, uint64_t lists, int64_t next_offset, uint64_t limit,
                 const range *within, uint64_t most, words *nodes, uint64_t *ends, words *problems) {
    const road r = {pieces, count, next_offset, false, limit};
    lane lanes[LANES] = {{0}};
    int failed = DONE;
    for (uint64_t at = 0; !failed && at < lists; at += LANES)
        failed = follow_some(&r, most, lanes, heads, within, at, lists - at < LANES ? lists : at + LANES, nodes, ends, problems);
    for (unsigned at = 0; at < LANES; at++)
        free(lanes[at].nodes.items);
    return failed;
}

/* Follow `lists` lists. Outputs: their nodes, one list after another; ends[]; and in `problems`,
 * three words for each list that ended early: its number, the reason, the node. `within`: a
 * range for each list's nodes, or NULL. Intact lists share no node. Damaged ones may, so that
 * they get at most as many nodes as the pieces have words. */
API int fl_follow_all(const piece *pieces, uint64_t count, const uint64_t *heads, uint64_t lists, int64_t next_offset, uint64_t limit,
                      const range *within, words *nodes, uint64_t *ends, words *problems) {
    return follow_lists(pieces, count, heads, lists, next_offset, limit, within, count_words(pieces, count), nodes, ends, problems);
}

bool copy_out(const piece *pieces, uint64_t count, uint64_t address, uint64_t size, uint8_t *out) {
    const piece *p = piece_holding(pieces, count, address);
    for (; p && p < pieces + count && size; p++) {
        uint64_t offset = address - p->address;
        if (p->address > address || offset >= p->length)
            return false;
        uint64_t part = p->length - offset < size ? p->length - offset : size;
        memcpy(out, p->data + offset, part);
        address += part;
        out += part;
        size -= part;
    }
    return !size;
}

/* Copy records to `out`. Records that are not completely in pieces are zeroed, and their numbers
 * go to `missing`. */
API int fl_gather(const piece *pieces, uint64_t count, const uint64_t *addresses, uint64_t records, uint64_t size, uint8_t *out, words *missing) {
    for (uint64_t at = 0; at < records; at++) {
        if (copy_out(pieces, count, addresses[at], size, out + at * size))
            continue;
        memset(out + at * size, 0, size);
        if (words_push(missing, at))
            return NO_MEMORY;
    }
    return DONE;
}

API int fl_self_pointers(const piece *p, int64_t distance, uint64_t before, words *found) {
    uint64_t base, count = piece_words(p, &base);
    const uint8_t *data = count ? p->data + (base - p->address) : NULL;
    int64_t steps = distance / (int64_t)WORD;
    if (distance % (int64_t)WORD)
        return DONE;
    for (uint64_t at = 0; at < count; at++) {
        uint64_t address = base + at * WORD, value = address - before, other = at + (uint64_t)steps;
        if (load(data + at * WORD) != value || address < before || other >= count || load(data + other * WORD) != value)
            continue;
        if (words_push(found, address))
            return NO_MEMORY;
    }
    return DONE;
}

/* Find addresses of words with a value in [low, low + span]. */
API int fl_search(const piece *p, uint64_t low, uint64_t span, words *found) {
    uint64_t base, count = piece_words(p, &base);
    const uint8_t *data = count ? p->data + (base - p->address) : NULL;
    for (uint64_t at = 0; at < count; at++)
        if (load(data + at * WORD) - low <= span && words_push(found, base + at * WORD))
            return NO_MEMORY;
    return DONE;
}

INLINE uint64_t mark_of(uint64_t value) { return value * 0x9E3779B97F4A7C15u >> 52; } /* of 4,096 */

/* Find addresses of words whose value is one of `values`, which ascend. */
API int fl_search_any(const piece *p, const uint64_t *values, uint64_t number, words *found) {
    uint64_t base, count = piece_words(p, &base), span = number ? values[number - 1] - values[0] : 0;
    const uint8_t *data = count ? p->data + (base - p->address) : NULL;
    uint64_t marks[64] = {0}; /* a bit for each value's hash: excludes most words */
    for (uint64_t at = 0; at < number; at++)
        marks[mark_of(values[at]) / 64] |= UINT64_C(1) << mark_of(values[at]) % 64;
    for (uint64_t at = 0; number && at < count; at++) {
        uint64_t value = load(data + at * WORD), first = 0;
        if (value - values[0] > span || !(marks[mark_of(value) / 64] >> mark_of(value) % 64 & 1))
            continue;
        BISECT(first, number, middle, values[middle] < value)
        if (values[first] == value && words_push(found, base + at * WORD))
            return NO_MEMORY;
    }
    return DONE;
}
