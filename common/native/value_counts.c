/* Distinct values with sums of their weights: a radix sort, then sums over equal values. */
#include "native.h"

enum { BITS = 11, BUCKETS = 1 << BITS, PASSES = (64 + BITS - 1) / BITS };

INLINE uint32_t digit(uint64_t value, int pass) {
    return (uint32_t)(value >> (pass * BITS)) & (BUCKETS - 1);
}

/* Do one stable pass of the sort; `at`: where the next value of each digit goes. */
static void spread(const uint64_t *values, const uint64_t *weights, uint64_t count, uint64_t *at, int pass, uint64_t *to,
                   uint64_t *weights_to) {
    for (uint64_t place = 0; place < count; place++) {
        uint64_t where = at[digit(values[place], pass)]++;
        to[where] = values[place];
        if (weights)
            weights_to[where] = weights[place];
    }
}

/* Write distinct values, ascending, to `values`, and their sums of weights to `sums`; return
 * their number. The caller passes the weights in `sums`, unless each weight is 1 (`equal`). The
 * spare arrays have the same size. */
API uint64_t fl_sum_by_value(uint64_t *values, uint64_t *sums, uint64_t count, bool equal, uint64_t *spare, uint64_t *spare_sums) {
    uint64_t seen[PASSES][BUCKETS];
    uint64_t *from = values, *to = spare, *weights = sums, *weights_to = spare_sums, found = 0;
    memset(seen, 0, sizeof seen);
    for (uint64_t place = 0; place < count; place++)
        for (int pass = 0; pass < PASSES; pass++)
            seen[pass][digit(values[place], pass)]++;
    for (int pass = 0; pass < PASSES && count; pass++) {
        uint64_t *at = seen[pass], next = 0;
        if (at[digit(values[0], pass)] == count) /* all digits are equal: nothing moves */
            continue;
        for (int bucket = 0; bucket < BUCKETS; bucket++) {
            uint64_t held = at[bucket];
            at[bucket] = next;
            next += held;
        }
        spread(from, equal ? NULL : weights, count, at, pass, to, weights_to);
        uint64_t *swapped = from;
        from = to, to = swapped;
        swapped = weights;
        weights = weights_to, weights_to = swapped;
    }
    for (uint64_t place = 0; place < count; found++) {
        uint64_t value = from[place], sum = 0;
        for (; place < count && from[place] == value; place++)
            sum += equal ? 1 : weights[place];
        values[found] = value;
        sums[found] = sum;
    }
    return found;
}
