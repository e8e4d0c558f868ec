/* 60 builders of variants that are lost: 40 that have ended, and 20 that have not; and one that a variable refers to. Prints "ready". */
#include <glib.h>
#include <stdio.h>
#include <unistd.h>

GVariantBuilder *volatile kept;
GVariant *volatile last;

static void __attribute__((noinline)) build(void) {
    for (int number = 0; number < 61; number++) {
        GVariantBuilder *builder = g_variant_builder_new(G_VARIANT_TYPE("a{sv}"));
        g_variant_builder_add(builder, "{sv}", "key", g_variant_new_int32(number));
        if (number == 60)
            kept = builder;
        else if (number % 3)
            last = g_variant_builder_end(builder);
        builder = NULL;
    }
}

static void __attribute__((noinline)) clear_stack(void) {
    volatile char room[64 << 10];
    for (unsigned at = 0; at < sizeof room; at++) room[at] = 0;
}

int main(void) {
    build();
    clear_stack();
    puts("ready");
    fflush(stdout);
    pause();
}
