/* A program that ends in the way that its argument selects, in functions of libc. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct order { char name[24]; struct order *next; void (*done)(struct order *); long number; };
struct order *orders;

__attribute__((noinline)) static void release(void *block) {
    free(block);
    puts("released");
}

__attribute__((noinline)) static void check_order(struct order *one) {
    assert(one->number == 3);
    puts("checked");
}

__attribute__((noinline)) static void stop(void) {
    puts("stop");
    abort();
}

int main(int count, char **words) {
    (void)count;
    for (int i = 0; i < 20; i++) {
        struct order *one = calloc(1, sizeof *one);
        one->number = 100 + i;
        one->next = orders;
        orders = one;
    }
    fprintf(stderr, "order=%p\n", (void *)orders);
    if (!strcmp(words[1], "twice")) {
        release(orders);
        release(orders);
    }
    if (!strcmp(words[1], "interior")) release(orders->name + 16);
    if (!strcmp(words[1], "assert")) check_order(orders);
    if (!strcmp(words[1], "abort")) stop();
    return 0;
}
