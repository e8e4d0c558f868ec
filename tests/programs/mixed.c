/* A program with all kinds of code in which it can be stopped. Prints a number that depends on every step.
   usage: mixed [trap]: stop at an int3 when main begins */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <stdint.h>
#include <setjmp.h>
#include <math.h>
struct pair { void *a, *b; long n; };
static jmp_buf env;
static uint64_t h = 1469598103934665603u;
static void mix(const void *p, size_t n) { const unsigned char *c = p; for (size_t i = 0; i < n; i++) h = (h ^ c[i]) * 1099511628211u; }
static int cmp(const void *a, const void *b) { long x = ((const struct pair *)a)->n, y = ((const struct pair *)b)->n; return x < y ? -1 : x > y; }
static struct pair __attribute__((noinline)) mk(long n) { struct pair p = {malloc(n + 1), NULL, n}; p.b = malloc(2 * n + 8); memset(p.a, (int)n, n + 1); memset(p.b, 3, 2 * n + 8); return p; }
static double __attribute__((noinline)) poly(double x, double y) { return sqrt(x * y + 3.0) / (1.0 + x); }
static long __attribute__((noinline)) leaf(long a, long b, long c) { volatile long z[8]; for (int i = 0; i < 8; i++) z[i] = a * i + b; long s = c; for (int i = 0; i < 8; i++) s = s * 31 + z[i]; return s; }
static void __attribute__((noinline)) deep(int n) { if (n == 0) longjmp(env, 7); deep(n - 1); }
static int __attribute__((noinline)) sw(int i) { switch (i) { case 0: return 5; case 1: return 9; case 2: return 1; case 3: return 77; case 4: return 4; case 5: return 0; case 6: return 12; default: return i; } }
int main(int argc, char **argv) {
    (void)argv;
#ifdef __x86_64__
    if (argc > 1) __asm__ volatile("int3");
#else
    (void)argc;
#endif
    for (int r = 0; r < 3; r++) {
        struct pair v[24], w[24];
        for (int i = 0; i < 24; i++) v[i] = mk((i * 7919 + r * 31) % 97);
        memcpy(w, v, sizeof w);
        qsort(w, 24, sizeof *w, cmp);
        for (int i = 0; i < 24; i++) { mix(w[i].a, w[i].n + 1); mix(w[i].b, 8); h ^= (uint64_t)leaf(i, r, w[i].n) + (uint64_t)sw(i % 9); double d = poly(i + .5, r + 2.25); mix(&d, 8); }
        char buf[200]; snprintf(buf, sizeof buf, "%d %s %.6f %ld %x", r, "some text", poly(r, 3.5), (long)strlen((char *)"abcdefgh"), 255); mix(buf, strlen(buf));
        long double ld = 1.0L; for (int i = 1; i < 20; i++) ld = ld * i + 0.25L; double dd = (double)(ld / 1e10L); mix(&dd, 8);
        if (setjmp(env) == 0) deep(5); else h++;
        char *dup = strdup(buf), *t = strtok(dup, " "); while (t) { mix(t, strlen(t)); t = strtok(NULL, " "); } free(dup);
        for (int i = 0; i < 24; i++) { free(v[i].a); free(v[i].b); }
    }
    printf("%016llx\n", (unsigned long long)h); return 0;
}
