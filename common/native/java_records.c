/* Writes Java objects as records of a heap dump (HPROF 1.0.2), whose numbers are big-endian.
 * ../runtimes/jvm/records.py describes the arguments. */
#include "blocks.h"
#include "java_objects.h"

enum { WRITTEN = 0, NO_ROOM = 1, PARTLY_PRESENT = 2 };
enum { TAG_INSTANCE = 0x21, TAG_OBJECTS = 0x22, TAG_NUMBERS = 0x23 };
enum { TYPE_OBJECT = 2 };

#define INSTANCE_HEAD 25u /* bytes of a record before the values of an instance */
#define ARRAY_HEAD 25u    /* at most, before the elements of an array */
#define FIELD_MOST 8u     /* bytes of the longest value */

typedef struct {
    const uint64_t *ids; /* by class, its identifier; 0: its objects have no record */
    const uint8_t *elements; /* by class, the type of an array's elements */
    const uint32_t *first, *fields;
} java_records;

static uint8_t *put32(uint8_t *out, uint32_t value) {
    value = __builtin_bswap32(value);
    memcpy(out, &value, sizeof value);
    return out + sizeof value;
}

static uint8_t *put64(uint8_t *out, uint64_t value) {
    value = __builtin_bswap64(value);
    memcpy(out, &value, sizeof value);
    return out + sizeof value;
}

/* Return log2 of the number of bytes that a value of this type has in memory. */
static unsigned type_shift(const java_heap *h, uint8_t type) {
    if (type == TYPE_OBJECT)
        return h->oop_bytes == 4 ? 2 : 3;
    /* boolean 4, char 5, float 6, double 7, byte 8, short 9, int 10, long 11 */
    return type & 3;
}

static uint8_t *put_reference(uint8_t *out, const uint8_t *data, const java_heap *h) {
    uint64_t value = h->oop_bytes == 4 ? load32(data) : load64(data);
    return put64(out, java_address(h, value));
}

/* Write `count` values of one type, which are contiguous at `data`. */
static uint8_t *put_values(uint8_t *out, const uint8_t *data, uint64_t count, uint8_t type, const java_heap *h) {
    unsigned shift = type_shift(h, type);
    if (type == TYPE_OBJECT) {
        for (uint64_t at = 0; at < count; at++)
            out = put_reference(out, data + (at << shift), h);
        return out;
    }
    if (shift == 0 || BIG) {
        memcpy(out, data, count << shift);
        return out + (count << shift);
    }
    for (uint64_t at = 0; at < count; at++, data += (size_t)1 << shift, out += (size_t)1 << shift) {
        if (shift == 1) {
            out[0] = data[1];
            out[1] = data[0];
        } else if (shift == 2) {
            put32(out, load32(data));
        } else {
            put64(out, load64(data));
        }
    }
    return out;
}

/* Write the elements of an array, or a part of them. */
API void fl_java_values(const java_heap *h, const uint8_t *data, uint64_t count, uint32_t type, uint8_t *out) {
    put_values(out, data, count, (uint8_t)type, h);
}

static uint8_t *put_instance(uint8_t *out, const uint8_t *object, uint64_t size, uint64_t address, uint32_t number, const java_heap *h,
                             const java_records *r) {
    *out++ = TAG_INSTANCE;
    out = put32(put64(out, address), 1);
    out = put64(out, r->ids[number]);
    uint8_t *length = out, *body = out += sizeof(uint32_t);
    for (uint32_t at = r->first[number]; at < r->first[number + 1]; at++) {
        uint64_t offset = r->fields[2 * (size_t)at];
        uint8_t type = (uint8_t)r->fields[2 * (size_t)at + 1];
        unsigned bytes = 1u << type_shift(h, type);
        if (offset + bytes <= size) {
            out = put_values(out, object + offset, 1, type, h);
        } else { /* the class is damaged */
            bytes = type == TYPE_OBJECT ? FIELD_MOST : bytes;
            memset(out, 0, bytes);
            out += bytes;
        }
    }
    put32(length, (uint32_t)(out - body));
    return out;
}

static uint8_t *put_array(uint8_t *out, const uint8_t *object, uint64_t address, uint32_t number, uint64_t length, const java_heap *h,
                          const java_records *r) {
    const uint32_t *class = h->classes + (size_t)number * CLASS_ROW;
    *out++ = class[0] == JAVA_OBJECTS ? TAG_OBJECTS : TAG_NUMBERS;
    out = put32(put64(out, address), 1);
    out = put32(out, (uint32_t)length);
    if (class[0] == JAVA_OBJECTS)
        out = put64(out, r->ids[number]);
    else
        *out++ = r->elements[number];
    return put_values(out, object + class[1], length, r->elements[number], h);
}

/* Return the number of an array's elements, at most those that its size has room for. */
static uint64_t array_length(const java_heap *h, uint64_t first, const uint8_t *object, uint64_t size, unsigned shift) {
    uint64_t length = load32(object + h->length_at), most = size > first ? (size - first) >> shift : 0;
    return length < most ? length : most;
}

/* Write records of the objects from number *next on that begin in a piece, until one does not fit
 * into `out`, or is not wholly in the piece. Set *next to the object after the last one that was
 * written, and *made to the number of bytes written. */
API int fl_java_records(const blocks *b, const piece *p, const java_heap *h, const uint8_t *numbers, uint64_t width, const uint64_t *ids,
                        const uint8_t *elements, const uint32_t *first, const uint32_t *fields, uint64_t *next, uint8_t *out,
                        uint64_t room, uint64_t *made) {
    const java_records columns = {ids, elements, first, fields}, *r = &columns;
    uint64_t top = p->length > UINT64_MAX - p->address ? UINT64_MAX : p->address + p->length, start = 0;
    uint8_t *at = out;
    uint32_t index = (uint32_t)*next;
    int result = WRITTEN;
    *made = 0;
    if (*next >= b->count)
        return WRITTEN;
    start = block_address(b, index);
    for (bool more = true; more && start < top; more = next_block(b, &index, &start)) {
        uint32_t number = type_number(numbers, width, index);
        const uint32_t *class = h->classes + (size_t)number * CLASS_ROW;
        if (number >= h->class_count || !r->ids[number] || class[0] == JAVA_MIRROR)
            continue;
        uint64_t size = size_of(b, index), needed = INSTANCE_HEAD;
        if (start < p->address || size > top - start || size < h->length_at + (class[0] == JAVA_FIXED ? 0 : 4u)) {
            result = PARTLY_PRESENT;
            break;
        }
        const uint8_t *object = p->data + (start - p->address);
        bool is_array = class[0] != JAVA_FIXED;
        unsigned shift = type_shift(h, r->elements[number]);
        uint64_t length = is_array ? array_length(h, class[1], object, size, shift) : 0;
        if (is_array)
            needed = ARRAY_HEAD + (length << (class[0] == JAVA_OBJECTS ? 3 : shift));
        else
            needed += FIELD_MOST * (uint64_t)(r->first[number + 1] - r->first[number]);
        if (needed > room - (uint64_t)(at - out)) {
            result = NO_ROOM;
            break;
        }
        at = is_array ? put_array(at, object, start, number, length, h, r) : put_instance(at, object, size, start, number, h, r);
    }
    *next = index;
    *made = (uint64_t)(at - out);
    return result;
}
