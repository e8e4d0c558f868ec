/* Reads scudo's blocks of one size class by their chunk headers: see ../allocators/scudo/engine.py
 * and layout.py. */
#include "native.h"

#define HEADER 16u
#define MARKER UINT32_C(0x44554353)
#define POLYNOMIAL UINT32_C(0x82F63B78) /* CRC-32C, reflected */
#define AHEAD 4096u                     /* bytes */

/* Also in ../allocators/scudo/layout.py and engine.py. */
enum { AVAILABLE, ALLOCATED, QUARANTINED, DAMAGED = 255 };
enum { UNKNOWN_SUM, CRC_SUM, BSD_SUM };

/* Fill the tables that `crc_of` uses to process eight bytes at once: table[k][b] is the CRC of the
 * byte b followed by k zero bytes. */
static void fill_tables(uint32_t table[8][256]) {
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t crc = b;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? POLYNOMIAL : 0);
        table[0][b] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t b = 0; b < 256; b++)
            table[k][b] = table[k - 1][b] >> 8 ^ table[0][table[k - 1][b] & 0xFF];
}

/* Return what the processor's CRC32 instruction returns for eight bytes. */
INLINE uint32_t crc_of(const uint32_t table[8][256], uint32_t crc, uint64_t value) {
    uint32_t result = 0;
    value ^= crc;
    for (int k = 0; k < 8; k++)
        result ^= table[7 - k][value >> 8 * k & 0xFF];
    return result;
}

INLINE uint16_t bsd_of(uint16_t sum, uint64_t value) {
    for (int k = 0; k < 8; k++) {
        sum = (uint16_t)(sum >> 1 | sum << 15);
        sum = (uint16_t)(sum + (value >> 8 * k & 0xFF));
    }
    return sum;
}

/* Return the checksum of the header, without its own checksum, of the chunk at `chunk`. */
INLINE uint16_t checksum_of(const uint32_t table[8][256], int algorithm, uint32_t cookie, uint64_t chunk, uint64_t header) {
    if (algorithm == BSD_SUM)
        return bsd_of(bsd_of((uint16_t)cookie, chunk), header);
    uint32_t crc = crc_of(table, crc_of(table, cookie, chunk), header);
    return (uint16_t)(crc ^ crc >> 16);
}

/* Read blocks of `stride` bytes (at least 32) of the class `number`; the piece consists of whole
 * blocks. Outputs for each: chunk address, size, state. */
API void fl_scudo_blocks(const piece *p, uint64_t stride, uint32_t number, uint32_t cookie, int algorithm, uint64_t *chunks,
                         uint64_t *sizes, uint8_t *states) {
    uint64_t count = p->length / stride, fetched = 0;
    uint32_t table[8][256];
    fill_tables(table);
    for (uint64_t i = 0; i < count; i++) {
        uint64_t at = i * stride, first = load64(p->data + at), header = first, offset = 0;
        prefetch_on(p->data, at, AHEAD, &fetched);
        int good = 1;
        if ((uint32_t)first == MARKER) {
            offset = first >> 32;
            good = offset % HEADER == 0 && offset <= stride - 2 * HEADER;
            offset = good ? offset : 0;
            header = load64(p->data + at + offset);
        }
        uint64_t chunk = p->address + at + offset + HEADER, size = header >> 12 & 0xFFFFF;
        uint8_t state = (uint8_t)(header >> 8 & 3);
        if (header && good)
            good = (header & 0xFF) == number && (header >> 32 & 0xFFFF) * HEADER == offset && state <= QUARANTINED &&
                   (state == AVAILABLE || size <= stride - HEADER - offset) &&
                   (algorithm == UNKNOWN_SUM || checksum_of(table, algorithm, cookie, chunk, header & ~(UINT64_C(0xFFFF) << 48)) == header >> 48);
        if (!good)
            state = DAMAGED;
        if (state == AVAILABLE) /* The next allocation may be aligned in another way. */
            chunk = p->address + at + HEADER;
        chunks[i] = chunk;
        sizes[i] = state == AVAILABLE || state == DAMAGED ? p->address + at + stride - chunk : size;
        states[i] = state;
    }
}
