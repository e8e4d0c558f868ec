/* Calls with arguments on the stack, spilled registers, recursion, arrays, structures by value, setjmp: words of frames of all kinds.
   Prints a number that depends on every step. usage: frames [trap]: stop at an int3 when main begins */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct big { long a[9]; };
static uint64_t h = 1469598103934665603u;
static jmp_buf back;
#define NOINLINE static __attribute__((noinline))
NOINLINE void mix(uint64_t value) { h = (h ^ value) * 1099511628211u; }
NOINLINE long ten(long a, long b, long c, long d, long e, long f, long g, long i, long j, long k) {
    mix((uint64_t)(g * 3 + k));
    return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * i + 9 * j + 10 * k;
}
NOINLINE long passes_on(long a, long b, long c, long d, long e, long f, long g, long i, long j, long k) {
    return ten(b, a, c, d, e, f, g, i, j, k); /* shares the same stack words: with -O2, the call is a jump */
}
NOINLINE long nested(long n) { return ten(n, n + 1, 2, 3, 4, 5, ten(n, 1, 1, 1, 1, 1, 1, 1, 1, n), 7, passes_on(1, 2, 3, 4, 5, 6, n, 8, 9, 10), n); }
NOINLINE long by_value(struct big one, long n) { mix((uint64_t)n); return one.a[0] + one.a[8] * n; }
NOINLINE long copies(long n) {
    struct big one;
    for (int i = 0; i < 9; i++) one.a[i] = n * i;
    return by_value(one, n) + by_value(one, n + 1);
}
NOINLINE long spills(long a, long b, long c) {
    long d = a * b, e = b * c, f = a ^ c, g = a + b, i = b - c, j = a * 3, k = c * 5, l = a | b;
    mix((uint64_t)d);
    mix((uint64_t)(e + f));
    long m = nested(a);
    mix((uint64_t)(g + i + j + k + l));
    return d + e + f + g + i + j + k + l + m;
}
NOINLINE long various(int count, ...) {
    va_list list;
    long sum = 0;
    va_start(list, count);
    while (count--) sum = sum * 31 + va_arg(list, long);
    va_end(list);
    return sum;
}
NOINLINE long recursive(long n) { return n < 2 ? n : recursive(n - 1) * 3 + recursive(n - 2) + spills(n, 2, 3); }
NOINLINE void leave(int n) { if (n == 0) longjmp(back, 3); leave(n - 1); mix((uint64_t)n); }
NOINLINE long returns_twice(long n) {
    volatile long kept = n * 7;
    if (setjmp(back) == 0) leave(4);
    return kept + n;
}
NOINLINE long sized(int n) {
    char text[n + 1];
    memset(text, 'a' + n % 26, (size_t)n);
    text[n] = 0;
    return (long)strlen(text) + text[n / 2] + ten(1, 2, 3, 4, 5, 6, n, 8, 9, 10);
}
NOINLINE int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

int main(int argc, char **argv) {
    (void)argv;
#ifdef __x86_64__
    if (argc > 1) __asm__ volatile("int3");
#else
    (void)argc;
#endif
    for (long n = 1; n < 7; n++) {
        int items[20];
        char text[80];
        for (int i = 0; i < 20; i++) items[i] = (int)((i * 7919 + n * 31) % 97);
        qsort(items, 20, sizeof *items, compare);
        mix((uint64_t)(items[3] + copies(n) + recursive(n) + returns_twice(n) + sized((int)n * 5)));
        mix((uint64_t)various(9, n, 2L, 3L, 4L, 5L, 6L, 7L, 8L, 9L));
        snprintf(text, sizeof text, "%ld %d %s %d %d %d %.3f %d", n, 1, "text", 2, 3, 4, (double)n / 3, 5);
        mix(strlen(text) + (uint64_t)text[9]);
    }
    printf("%016llx\n", (unsigned long long)h);
    return 0;
}
