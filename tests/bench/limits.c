/* Lower bounds for any tool on this machine: read all bytes once, and wait for memory once for each block. */
#include <stddef.h>
#include <stdint.h>

/* The sum of all words: a sequential read. */
uint64_t stream(const uint64_t *words, size_t count) {
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (size_t at = 0; at + 4 <= count; at += 4) {
        a += words[at];
        b += words[at + 1];
        c += words[at + 2];
        d += words[at + 3];
    }
    return a + b + c + d;
}

/* The sum of `number` words at random places: cache misses that do not depend on each other, so that they overlap. */
uint64_t misses(const uint64_t *words, size_t count, size_t number) {
    uint64_t sum = 0, random = 0x2545F4914F6CDD1D;
    for (size_t at = 0; at < number; at++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        sum += words[(size_t)(((unsigned __int128)random * count) >> 64)];
    }
    return sum;
}
