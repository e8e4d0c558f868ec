/* Finds words that are not references in the storage of CPython's lists, deques, dictionaries, sets
 * and attribute values.
 *
 * A list may have more storage than items, and the words after its items may still refer to items
 * that were removed. The same is true for the first and the last block of a deque. A block of
 * values begins with the order of the attributes, which is only partly initialized. Dictionaries
 * and sets store the hashes of their keys. The hash of an int is its value, so the hash of
 * id(OBJECT) is the object's address. This storage is in separate blocks. First, objects claim the
 * blocks that they own; then the contents of each claimed block are checked. For unused words of
 * the objects themselves, see cpython_remains.c. */
#include "cpython_values.h"

#define NO_TYPE UINT32_MAX
#define HAS_ITEMS 1u   /* kinds of a type: ob_size, ob_item, allocated follow the type */
#define HAS_VALUES 2u /* a pointer to values four words before the object, in 3.11 */
#define HAS_TAGGED 4u /* a pointer minus one three words before the object, in 3.12 */
#define IS_DEQUE 8u   /* a deque: see claim_deque */
#define HAS_SPARE 16u /* a deque of 3.11 and later: numfreeblocks and freeblocks follow maxlen */
#define HAS_KEYS 32u  /* a dictionary: its fifth word points to its keys */
#define HAS_SHARED 64u /* a type: see SHARED_KEYS */
#define LATER_VALUES (HAS_VALUES | HAS_TAGGED) /* a dictionary since 3.13: see find_values */
#define IS_SET 128u   /* a set: see claim_set */
#define PREFIX UINT32_C(0x80000000)
#define CHUNK UINT32_C(0x40000000) /* a block of a deque: see claim_chunk */
#define KEYS UINT32_C(0x20000000)  /* the keys of a dictionary: see find_keys */
#define SET UINT32_C(0x10000000)   /* the table of a set */
#define RAW UINT32_C(0x08000000)   /* a buffer: see claim_buffer */
#define DISPUTED UINT32_MAX
#define OLD_VALUES (PREFIX | 64u) /* values up to 3.10; 64 is not a possible prefix */
#define MOST_PREFIX 64u
#define MOST_ITEMS (RAW - 4u)      /* of a list, whose claim must be less than RAW */
#define SAMPLED 4u /* items checked at both ends of a list */
#define LAST_WORD 63u
#define LOWEST_OBJECT 4096u
#define CHUNK_ITEMS 64u               /* BLOCKLEN of Modules/_collectionsmodule.c */
#define CHUNK_WORDS (CHUNK_ITEMS + 2) /* leftlink, items, rightlink */
#define MOST_SPARE 16u                /* MAXFREEBLOCKS */
#define DEQUE_WORDS 9u                /* of a deque up to maxlen */
#define BUFFERS 2u                    /* numbers of a type in `buffers` */
#define NO_WORD UINT64_MAX
/* Numbers of the words of a type that may refer to the keys that its objects share
 * (ht_cached_keys): the first in 3.9, the second in 3.10, 3.11 and 3.14, the third in 3.12 and
 * 3.13. The reference count is word 0. */
#define SHARED_KEYS 108u
#define SHARED_PLACES 3u
#define WANTED 254u                   /* in `heads`; this and larger numbers are not patterns */

/* Return the block that contains this address, and its start; NONE if there is none. */
static uint32_t holder(const blocks *b, uint64_t address, uint64_t *start) {
    uint32_t index = block_before(b, slot_of(b, address), address, start);
    return index != NONE && (address == *start || address - *start < size_of(b, index)) ? index : NONE;
}

/* A claim on a block in use without an object. It says that the words from number `claim` - 1 on
 * are unused or, with PREFIX, that the words below `claim` are. Example: a list with 3 items
 * claims 4. Of two lists that claim a block, the one with more items counts, because the other
 * list was freed. */
static void claim_block(const blocks *b, const uint32_t *found, uint32_t *claims, uint32_t index, uint32_t claim) {
    if (b->states[index] != IN_USE || found[index] != NO_TYPE)
        return;
    uint32_t before = claims[index];
    bool disputed = before == DISPUTED || (before ^ claim) & (PREFIX | CHUNK | KEYS | SET | RAW) || (claim & CHUNK && claim != before);
    claims[index] = !before ? claim : disputed ? DISPUTED : before > claim ? before : claim;
}

/* `object`: a list from its reference count on, at least five words. A list whose last item was
 * removed keeps a block of the smallest size (PyMem_Realloc of 0 bytes). A freed list, whose
 * reference count is 0, may look the same, but its block may belong to something else. */
static void claim_list(const blocks *b, const uint8_t *object, uint64_t shift, const uint32_t *found, uint32_t *claims) {
    uint64_t items = load(object + 2 * WORD), at = load(object + 3 * WORD), capacity = load(object + 4 * WORD);
    uint64_t head = shift ? WORD : 0; /* in a free-threaded list, a number precedes the items */
    if ((!items && (shift || !load(object))) || items > capacity || capacity > MOST_ITEMS || at % WORD || at < head)
        return;
    uint64_t start = 0, wanted = head + (capacity ? capacity : 1) * WORD;
    uint32_t index = holder(b, at - head, &start);
    if (index == NONE || start != at - head)
        return;
    uint64_t size = size_of(b, index), spare = wanted / 4 > 4 * WORD ? wanted / 4 : 4 * WORD;
    if (size >= wanted && size - wanted <= spare)
        claim_block(b, found, claims, index, (uint32_t)(head / WORD + items + 1));
}

static void claim_values(const blocks *b, uint64_t values, const uint32_t *found, uint32_t *claims) {
    uint64_t start = 0;
    uint32_t index = values ? holder(b, values, &start) : NONE;
    if (index == NONE || values % WORD)
        return;
    uint64_t prefix = values - start;
    if (prefix && prefix <= MOST_PREFIX && prefix % WORD == 0)
        claim_block(b, found, claims, index, PREFIX | (uint32_t)(prefix / WORD));
}

/* Claim the values of a dictionary. In 3.11 and 3.12 they have a prefix; `kind` is then HAS_VALUES
 * or HAS_TAGGED. */
static void claim_dict_values(const blocks *b, uint64_t values, unsigned kind, const uint32_t *found, uint32_t *claims) {
    uint64_t start = 0;
    if (kind == HAS_VALUES || kind == HAS_TAGGED) {
        claim_values(b, values, found, claims);
        return;
    }
    uint32_t index = values && values % WORD == 0 ? holder(b, values, &start) : NONE;
    if (index != NONE && start == values)
        claim_block(b, found, claims, index, kind ? PREFIX : OLD_VALUES);
}

static void claim_keys(const blocks *b, uint64_t keys, const uint32_t *found, uint32_t *claims) {
    uint64_t start = 0;
    uint32_t index = keys % WORD ? NONE : holder(b, keys, &start);
    if (index != NONE && start == keys)
        claim_block(b, found, claims, index, KEYS);
}

/* Find the hashes in the keys of a dictionary. Set `hashes` to the number of the first word with a
 * hash. Return the number of the first word after the keys; the two are equal if there are no
 * hashes. Return NO_WORD if these are not keys. There are entries for two thirds of the slots. An
 * entry has three words, of which the first is the hash. If all keys are strings, an entry may have
 * two words, and no hash (CPython 3.11 and later).
 *
 * CPython 3.11 to 3.14 (struct _dictkeysobject, Include/internal/pycore_dict.h): the reference
 * count, and in one byte each the logarithm of the number of slots, the logarithm of the bytes of
 * all slots, and the kind of the entries. CPython 3.9 and 3.10 (Objects/dict-common.h): reference
 * count, number of slots, lookup function, numbers of free and of used entries. Their second
 * words differ: the number of slots has only one bit set, the logarithms have more. */
static uint64_t find_keys(const uint8_t *keys, uint64_t size, uint64_t *hashes) {
    uint64_t slots = load(keys + WORD), head = 5 * WORD + slots * (slots >> 16 ? 4 : slots >> 8 ? 2 : 1);
    unsigned kind = 0;
    if (slots < 8 || slots & (slots - 1) || slots >> 32 || load(keys + 2 * WORD) < LOWEST_OBJECT) {
        unsigned bytes = keys[WORD + 1];
        kind = keys[WORD + 2];
        if (keys[WORD] > 32 || bytes > 36 || bytes < keys[WORD] || kind > 2)
            return NO_WORD;
        slots = UINT64_C(1) << keys[WORD];
        head = 4 * WORD + (UINT64_C(1) << bytes);
    }
    uint64_t end = head + slots * 2 / 3 * (kind ? 2 : 3) * WORD;
    *hashes = (kind ? end : head) / WORD;
    return end > size ? NO_WORD : end / WORD;
}

/* `object`: at least six words of a set: reference count, type, two numbers, the number of entries
 * minus one, and the pointer to the table. An entry of the table has two words: key and hash. The
 * number of entries is a power of two, at least 8. */
static void claim_set(const blocks *b, const uint8_t *object, const uint32_t *found, uint32_t *claims) {
    uint64_t start = 0, entries = load(object + 4 * WORD) + 1, at = load(object + 5 * WORD);
    uint32_t index = at % WORD || entries >> 32 ? NONE : holder(b, at, &start);
    uint64_t size = index == NONE || start != at ? 0 : size_of(b, index), wanted = entries * 2 * WORD;
    if (entries >= 8 && !(entries & (entries - 1)) && size >= wanted && size - wanted <= wanted / 4 + 4 * WORD)
        claim_block(b, found, claims, index, SET);
}

/* Claim the words below `front` and from `back` on of a block of a deque. */
static void claim_chunk(const blocks *b, uint64_t address, uint64_t front, uint64_t back, const uint32_t *found, uint32_t *claims) {
    uint64_t start = 0;
    uint32_t index = address % WORD ? NONE : holder(b, address, &start);
    uint64_t size = index == NONE ? 0 : size_of(b, index);
    if (start == address && size >= CHUNK_WORDS * WORD && size <= CHUNK_WORDS * WORD * 5 / 4)
        claim_block(b, found, claims, index, CHUNK | (uint32_t)(back << 8 | front));
}

/* `object`: the count and type of a deque, `left` bytes. The items are those from number `first` of
 * the first block to number `last` of the last block. The outer links of these blocks are not
 * initialized. */
static void claim_deque(const blocks *b, const uint8_t *object, uint64_t left, bool has_spare, const uint32_t *found, uint32_t *claims) {
    uint64_t items = load(object + 2 * WORD), first_block = load(object + 3 * WORD), last_block = load(object + 4 * WORD);
    uint64_t first = load(object + 5 * WORD), last = load(object + 6 * WORD);
    if (first >= CHUNK_ITEMS || last >= CHUNK_ITEMS || items >> 32)
        return;
    /* Items of whole blocks: of all blocks but the last one, including the unused ones. */
    uint64_t between = items + first - last - 1;
    if (first_block == last_block ? between != 0 : between - 1 >= UINT64_C(1) << 33 || between % CHUNK_ITEMS)
        return;
    if (first_block == last_block) {
        claim_chunk(b, first_block, first + 1, last + 2, found, claims);
    } else {
        claim_chunk(b, first_block, first + 1, CHUNK_WORDS, found, claims);
        claim_chunk(b, last_block, 0, last + 2, found, claims);
    }
    uint64_t spare = has_spare && left >= (DEQUE_WORDS + 1 + MOST_SPARE) * WORD ? load(object + DEQUE_WORDS * WORD) : 0;
    for (uint64_t at = 0; at < spare && spare <= MOST_SPARE; at++)
        claim_chunk(b, load(object + (DEQUE_WORDS + 1 + at) * WORD), CHUNK_WORDS, CHUNK_WORDS, found, claims);
}

/* The contents of a buffer. NO_POINTERS: characters or numbers. ARRAY: items; the number of items
 * is word 2 of the object, and the number for which there is room is word 4. BYTES: a bytearray;
 * its words from number 2 on are its length, the bytes for which there is room, the start of the
 * buffer, and the start of the bytes in use. POINTERS: as many as word 2 says. CHILDREN: see
 * after_children. */
enum { NO_POINTERS, ARRAY, BYTES, POINTERS, CHILDREN };
#define CHILDREN_AT 4u /* word of a buffer with CHILDREN: room for as many children */

/* Claim the words of a buffer that are not in use. The low byte of `buffer` is the word of the
 * object that points to the buffer, the other bits are the contents. `left`: bytes of the object
 * that are in the piece. The size of an array's item is not in the array; the largest power of two
 * that fits is an item's size or more. */
static void claim_buffer(const blocks *b, const uint8_t *object, uint64_t left, uint32_t buffer, const uint32_t *found, uint32_t *claims) {
    uint64_t place = buffer & 0xff, start = 0, used = 0;
    if (left < 6 * WORD || left < (place + 1) * WORD)
        return;
    uint64_t at = load(object + place * WORD), count = load(object + 2 * WORD), room = load(object + 4 * WORD);
    uint32_t index = at && at % WORD == 0 ? holder(b, at, &start) : NONE;
    uint64_t size = index == NONE || start != at ? 0 : size_of(b, index), item = WORD;
    if (!size)
        return;
    if (buffer >> 8 == ARRAY) {
        while (room <= size && room * item > size)
            item /= 2;
        used = count * item;
        if (count > room || room > size)
            return;
    } else if (buffer >> 8 == BYTES) {
        room = load(object + 3 * WORD);
        used = load(object + 5 * WORD) - at + count;
        if (room > size || count >= room || used >= room)
            return;
    } else if (buffer >> 8 == POINTERS) {
        used = count * WORD;
        if (count > size / WORD)
            return;
    }
    uint64_t first = (used + WORD - 1) / WORD;
    if (first < MOST_ITEMS)
        claim_block(b, found, claims, index, RAW | (buffer >> 8 == CHILDREN ? 0 : (uint32_t)(first + 1)));
}

/* Return the number of the first unused word of a buffer that begins with attributes, the number of
 * children, the number for which there is room, and the address of the children. The first
 * children are in the buffer itself. `start`: its address. `left`: its bytes in the piece. */
static uint64_t after_children(const uint8_t *buffer, uint64_t start, uint64_t left) {
    uint64_t count = left < CHILDREN_AT * WORD ? NO_WORD : load(buffer + WORD);
    if (count != NO_WORD && load(buffer + 3 * WORD) != start + CHILDREN_AT * WORD)
        return CHILDREN_AT;
    return count <= CHILDREN_AT ? CHILDREN_AT + count : NO_WORD;
}

/* Record the claims of the objects in the piece. `kinds` has a byte for each type, with the bits
 * HAS_ITEMS, HAS_VALUES, HAS_TAGGED, IS_DEQUE, HAS_SPARE, HAS_KEYS, HAS_SHARED and IS_SET.
 * `buffers` has BUFFERS numbers for each type, 0 for no buffer; see claim_buffer. `found`,
 * `offsets` and `shift` are those of fl_objects. An object that is only partly in the piece claims
 * nothing. */
API void fl_claim_storage(const blocks *b, const piece *p, const uint32_t *found, const uint8_t *offsets, const uint8_t *kinds,
                          const uint32_t *buffers, uint64_t shift, uint32_t *claims) {
    uint64_t start = 0;
    for (uint32_t index = block_from(b, p->address, &start); index < b->count && start - p->address < p->length; next_block(b, &index, &start)) {
        uint32_t type = found[index];
        if (type == NO_TYPE || !(kinds[type] || buffers[BUFFERS * type]) || start % WORD)
            continue;
        uint64_t left = p->length - (start - p->address), size = size_of(b, index), offset = offsets[type];
        const uint8_t *object = p->data + (start - p->address) + offset;
        left = left < size ? left : size;
        for (uint32_t at = BUFFERS * type; at < BUFFERS * (type + 1) && buffers[at] && left > offset; at++)
            claim_buffer(b, object, left - offset, buffers[at], found, claims);
        if (kinds[type] & HAS_ITEMS && left >= offset + 5 * WORD)
            claim_list(b, object, shift, found, claims);
        if (kinds[type] & IS_DEQUE && left >= offset + DEQUE_WORDS * WORD)
            claim_deque(b, object, left - offset, kinds[type] & HAS_SPARE, found, claims);
        if (kinds[type] & HAS_KEYS && left >= offset + 5 * WORD)
            claim_keys(b, load(object + 4 * WORD), found, claims);
        if (kinds[type] & HAS_KEYS && left >= offset + 6 * WORD)
            claim_dict_values(b, load(object + 5 * WORD), kinds[type] & LATER_VALUES, found, claims);
        for (uint64_t at = SHARED_KEYS; at < SHARED_KEYS + SHARED_PLACES && kinds[type] & HAS_SHARED && left >= offset + (at + 1) * WORD; at++)
            claim_keys(b, load(object + at * WORD), found, claims);
        if (kinds[type] & IS_SET && left >= offset + 6 * WORD)
            claim_set(b, object, found, claims);
        if ((kinds[type] & LATER_VALUES) == HAS_VALUES && offset >= 4 * WORD && left >= offset)
            claim_values(b, load(object - 4 * WORD), found, claims);
        if ((kinds[type] & LATER_VALUES) == HAS_TAGGED && offset >= 3 * WORD && left >= offset && load(object - 3 * WORD) & 1)
            claim_values(b, load(object - 3 * WORD) + 1, found, claims);
    }
}

/* Return whether this word can be an item of a list: a null pointer, an object, or an address
 * outside all blocks, such as that of an object in the interpreter's data. */
static bool is_item(const blocks *b, uint64_t word, const uint32_t *found, const uint8_t *offsets, uint64_t shift) {
    if (!word)
        return true;
    if (word % WORD || word < LOWEST_OBJECT)
        return false;
    uint64_t start = 0;
    uint32_t index = holder(b, word, &start);
    return index == NONE || (found[index] != NO_TYPE && word - start + shift == offsets[found[index]]);
}

/* Return whether the value with this number may be in use. `length`: bytes of the part before the
 * values. The last byte of this part is its length, the byte before it is the number of values in
 * use, and the bytes before these two are the numbers of these values, in reverse order
 * (_PyDictValues_AddToInsertionOrder in Include/internal/pycore_dict.h of 3.11 and 3.12). */
static bool is_value(const uint8_t *data, uint64_t length, uint64_t number) {
    uint64_t used = length < 3 ? 0 : data[length - 2], at = 0;
    while (at < used && at + 3 <= length && data[length - 3 - at] != number)
        at++;
    return at < used;
}

/* Return the same as find_values for a block of the given size up to 3.10. There are values for two
 * thirds of 8, 16 or 32 slots. A word that follows an odd number of values is not written, because
 * allocators round sizes up to two words. Return 0 if there is no such word. */
static uint64_t find_old_values(uint64_t size) {
    for (uint64_t slots = 8; slots <= 32; slots *= 2)
        if (slots * 2 / 3 % 2 && size == (slots * 2 / 3 + 1) * WORD)
            return slots * 2 / 3;
    return 0;
}

/* Return whether the items at both ends, of those in the piece, look like items. `data`: the
 * block's bytes. */
static bool are_items(const blocks *b, const uint8_t *data, uint64_t left, uint64_t first, uint64_t end, const uint32_t *found,
                      const uint8_t *offsets, uint64_t shift) {
    for (uint64_t at = first; at < end; at++) {
        if (at == first + SAMPLED && end - at > SAMPLED)
            at = end - SAMPLED;
        if ((at + 1) * WORD <= left && !is_item(b, load(data + at * WORD), found, offsets, shift))
            return false;
    }
    return true;
}

/* Add the bounds of the words from number `first` to `end` of a block to `rest`, if some of them
 * point into blocks. `data`: the block's bytes. */
static int add_unused(const blocks *b, const uint8_t *data, uint64_t start, uint64_t first, uint64_t end, words *rest) {
    uint64_t at = first;
    while (at < end && block_find(b, load(data + at * WORD)) == NONE)
        at++;
    return at < end && (words_push(rest, start + first * WORD) || words_push(rest, start + end * WORD)) ? NO_MEMORY : DONE;
}

/* Add the bounds of each hash that is an address in a block to `rest`. The words with a hash are
 * those from number `first` to `end`, in steps of `step`. `data`: the block's bytes. */
static int add_hashes(const blocks *b, const uint8_t *data, uint64_t start, uint64_t first, uint64_t end, uint64_t step, words *rest) {
    for (uint64_t at = first; at < end; at += step)
        if (add_unused(b, data, start, at, at + 1, rest))
            return NO_MEMORY;
    return DONE;
}

/* Set the patterns (see fl_graph_exclude_words) of claimed blocks in the piece whose contents
 * agree with their claims, and that have no pattern yet. tails[n] excludes the words from n on,
 * up to LAST_WORD; 0: there is no such pattern. For longer lists and for blocks of deques, the
 * bounds of the unused parts are added to `rest`, if words of these parts in the piece point into
 * blocks. For keys of dictionaries and tables of sets, the bounds of hashes that point into blocks
 * are added, and those of the part of the block behind the table.
 *
 * heads[64 * n + m] excludes the words before word n and, unless m is 0, those from word m on; 0:
 * there is no such pattern. A block of values may have one more word after the values, which is
 * stale unless it is a value in use. A number of WANTED or more means that the pattern does not
 * exist yet. It is replaced by WANTED, and the caller makes the pattern and passes the piece
 * again. */
API int fl_unused_storage(const blocks *b, const piece *p, const uint32_t *found, const uint8_t *offsets, uint64_t shift, const uint32_t *claims,
                          const uint8_t *tails, uint8_t *heads, uint8_t *patterns, words *rest) {
    uint64_t start = 0;
    for (uint32_t index = block_from(b, p->address, &start); index < b->count && start - p->address < p->length; next_block(b, &index, &start)) {
        uint32_t claim = claims[index];
        if (!claim || claim == DISPUTED || patterns[index] || start % WORD)
            continue;
        uint64_t left = p->length - (start - p->address), size = size_of(b, index) / WORD * WORD;
        const uint8_t *data = p->data + (start - p->address);
        if (claim == PREFIX || claim == OLD_VALUES) {
            uint64_t end = claim == OLD_VALUES ? find_old_values(size) : left >= WORD ? find_values(data, size) : 0;
            uint8_t *head = &heads[claim == OLD_VALUES ? end : 64 + end];
            if (end && *head >= WANTED)
                *head = WANTED;
            else if (end)
                patterns[index] = *head;
            continue;
        }
        if (claim & PREFIX) {
            uint64_t prefix = claim & ~PREFIX, length = prefix * WORD, last = size / WORD - 1;
            if (length > size || length > left || data[length - 1] != length)
                continue;
            bool ends = last > prefix && last < LAST_WORD && size <= left && block_find(b, load(data + last * WORD)) != NONE;
            ends = ends && !is_value(data, length, last - prefix);
            uint8_t *head = &heads[64 * prefix + (ends ? last : 0)];
            if (*head >= WANTED)
                *head = WANTED;
            else
                patterns[index] = *head;
            continue;
        }
        if (claim & CHUNK) {
            uint64_t front = claim & 0xff, back = claim >> 8 & 0xff;
            if (left >= size && (add_unused(b, data, start, 0, front, rest) || add_unused(b, data, start, back, size / WORD, rest)))
                return NO_MEMORY;
            continue;
        }
        if (claim == SET) {
            /* The table is the largest power of two that fits: claim_set permits a quarter more. */
            uint64_t end = size / WORD;
            while (end & (end - 1))
                end &= end - 1;
            if (add_hashes(b, data, start, 1, left < end * WORD ? left / WORD : end, 2, rest))
                return NO_MEMORY;
            if (left >= size && add_unused(b, data, start, end, size / WORD, rest))
                return NO_MEMORY;
            continue;
        }
        uint64_t first = (claim & ~RAW) - 1, head = shift ? 1 : 0;
        if (claim == KEYS) {
            uint64_t hashes = 0;
            first = left >= 4 * WORD ? find_keys(data, size, &hashes) : NO_WORD;
            if (first == NO_WORD || left < size || (size / WORD - first) * WORD > first * WORD / 4 + 4 * WORD)
                continue;
            if (add_hashes(b, data, start, hashes, first, 3, rest))
                return NO_MEMORY;
            if (first == size / WORD)
                continue;
        } else if (claim == RAW && (first = after_children(data, start, left)) == NO_WORD) {
            continue;
        } else if (first * WORD >= size || (!(claim & RAW) && !are_items(b, data, left, head, first, found, offsets, shift)))
            continue;
        if (first < LAST_WORD) {
            patterns[index] = tails[first];
            continue;
        }
        uint64_t at = first;
        while ((at + 1) * WORD <= size && (at + 1) * WORD <= left && block_find(b, load(data + at * WORD)) == NONE)
            at++;
        if ((at + 1) * WORD <= size && (at + 1) * WORD <= left && (words_push(rest, start + first * WORD) || words_push(rest, start + size)))
            return NO_MEMORY;
    }
    return DONE;
}
