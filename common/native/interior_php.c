/* Structures of PHP that 64-bit programs refer to by interior pointers.
 *
 * An object of an internal class (zend_types.h: zend_object, PHP 7.0 to 8.4) is in a block after
 * data of the class. Pointers refer to the zend_object. It begins with its reference count. Its
 * type is at offset 4, and the address of its handlers at offset 24. The first member of the
 * handlers is the offset of the zend_object in the block.
 *
 * Arrays (zend_types.h, zend_hash.h, PHP 7.0 to 8.4): the block has 32-bit hash slots and then
 * the elements; the head's arData points to the elements. Head, in bytes from arData: mask -4,
 * elements used 8, elements that are not deleted 12, places 16. The number of slots is -mask: as
 * many as places (to 7.2), or twice as many; a packed array has two. A slot is -1 or the number
 * of an element. An element has 32 bytes; in packed arrays since 8.2, 16.
 *
 * Arguments of functions (zend_compile.h: zend_internal_arg_info, zend_arg_info, zend_API.c:
 * zend_register_functions, PHP 8.0 to 8.4): elements of 32 bytes, the first of which describes
 * the result. In internal functions, it begins with the number of required arguments, or with -1 if
 * all are required. In functions of PHP code, it begins with 0. The function's member arg_info
 * points to the second element. Before arg_info are num_args and required_num_args, of 32 bits
 * each. */
#include "interior_structures.h"

#define SLOT 4u
#define ELEMENT 32u
#define PACKED_SLOTS 2u
#define PACKED_ELEMENT 16u
#define UNUSED UINT32_MAX
#define ARGUMENT 32u
#define MOST_ARGUMENTS (1u << 12)
#define MOST_PADDING 24u /* bytes by which usable sizes exceed the requested sizes */
#define SLOTS_AT_A_TIME 256u
#define TYPE_MASK 15u /* bits of the 32-bit type that contain IS_OBJECT or another type */
#define IS_OBJECT 8u
#define OBJECT_BYTES 40u  /* size of a zend_object without properties */
#define HANDLERS 24u      /* offset of the address of the handlers */
#define MOST_OFFSET 4096u /* most bytes of data of the class */

static bool read32(const memory *m, uint64_t address, uint32_t *value) {
    uint8_t data[4];
    if (!read_bytes(m, address, sizeof data, data))
        return false;
    *value = load32(data);
    return true;
}

/* Return whether a power of two of hash slots may precede the pointer. Checks the first two
 * slots. */
bool may_be_php_array(const memory *m, const candidate *c) {
    uint64_t offset = c->pointer - c->start, slots = offset / SLOT;
    uint32_t first, second;
    if (WORD != 8 || offset % 8 || slots & (slots - 1) || slots > UINT32_MAX)
        return false;
    if (!read32(m, c->start, &first) || !read32(m, c->start + SLOT, &second))
        return false;
    /* element numbers are below this; packed arrays have none */
    uint64_t least = slots == PACKED_SLOTS ? 0 : slots;
    return (first == UNUSED || first < least) && (second == UNUSED || second < least);
}

static bool are_slots(memory *m, uint64_t address, uint64_t slots, uint32_t used) {
    uint8_t data[SLOTS_AT_A_TIME * SLOT];
    while (slots) {
        uint64_t some = slots < SLOTS_AT_A_TIME ? slots : SLOTS_AT_A_TIME;
        if (m->credit < some * SLOT || !read_bytes(m, address, some * SLOT, data))
            return false;
        m->credit -= some * SLOT;
        for (uint64_t at = 0; at < some; at++) {
            uint32_t number = load32(data + at * SLOT);
            if (number != UNUSED && number >= used)
                return false;
        }
        address += some * SLOT;
        slots -= some;
    }
    return true;
}

int php_array_at(memory *m, candidate *c) {
    uint32_t mask, used, count, places;
    if (!c->word || !read32(m, c->word - 4, &mask) || !read32(m, c->word + 8, &used) || !read32(m, c->word + 12, &count) ||
        !read32(m, c->word + 16, &places))
        return NOTHING;
    uint64_t slots = (c->pointer - c->start) / SLOT;
    bool packed = slots == PACKED_SLOTS;
    if (mask != (uint32_t)-slots || !places || places & (places - 1) || used > places || count > used)
        return NOTHING;
    if (!packed && slots != places && slots != 2 * (uint64_t)places)
        return NOTHING;
    /* The elements of packed arrays may also have 32 bytes. The allocator may round the size up
     * by half. */
    uint64_t most = (uint64_t)places * ELEMENT, least = packed ? (uint64_t)places * PACKED_ELEMENT : most, left = end_of(c) - c->pointer;
    if (least > left || (left > most && left - most > c->size / 2) || !are_slots(m, c->start, slots, packed ? 0 : used))
        return NOTHING;
    c->used = count;
    c->places = places;
    return PHP_ARRAY;
}

int php_object_at(const memory *m, const candidate *c) {
    uint64_t offset = c->pointer - c->start, handlers;
    uint32_t count, type, wanted;
    if (WORD != 8 || offset % 8 || offset > MOST_OFFSET || end_of(c) - c->pointer < OBJECT_BYTES)
        return NOTHING;
    if (!read32(m, c->pointer, &count) || !read32(m, c->pointer + 4, &type) || !count || count > INT32_MAX || (type & TYPE_MASK) != IS_OBJECT)
        return NOTHING;
    if (!read_word(m, c->pointer + HANDLERS, &handlers) || !read32(m, handlers, &wanted))
        return NOTHING;
    return wanted == offset ? PHP_OBJECT : NOTHING;
}

bool may_be_php_arguments(const candidate *c) { return WORD == 8 && c->pointer - c->start == ARGUMENT; }

/* num_args does not count a variadic argument, which has one more element. */
int php_arguments_at(const memory *m, const candidate *c) {
    uint32_t count, required;
    uint64_t first;
    if (!c->word || !read32(m, c->word - 8, &count) || !read32(m, c->word - 4, &required) || !read_word(m, c->start, &first))
        return NOTHING;
    if (count > MOST_ARGUMENTS || required > count || (first && first != required && first != UINT64_MAX))
        return NOTHING;
    /* A size class of Zend's memory manager is at most a quarter larger than the previous one. */
    uint64_t least = (count + 1) * (uint64_t)ARGUMENT, padding = least / 4 > MOST_PADDING ? least / 4 : MOST_PADDING;
    return least <= c->size && c->size <= least + ARGUMENT + padding ? PHP_ARGUMENTS : NOTHING;
}
