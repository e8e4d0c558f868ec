/* A program that ends with a fault in a loop, or through a pointer, on any architecture. Usage: crash_pointers WORD. Prints the address of
 * the third of five structures in a list. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define SEPARATE __attribute__((noinline, noclone))

struct client { long id; char *name; struct client *next; void (*close)(struct client *); };
struct client *clients, *table[8];
static void close_client(struct client *one) { one->id = -1; }

SEPARATE long count_letters(struct client *one) { /* compilers load `next` before they use `name` */
    long sum = 0;
    for (; one; one = one->next) sum += one->name[3];
    return sum;
}
SEPARATE long sum_ids(struct client *one) {
    long sum = 0;
    for (; one; one = one->next) sum += one->id;
    return sum;
}
SEPARATE void close_all(struct client *one) {
    while (one) {
        struct client *next = one->next;
        one->close(one);
        one = next;
    }
}
SEPARATE long sum_table(long count) {
    long sum = 0;
    for (long at = 0; at < count; at++) sum += table[at]->id;
    return sum;
}
SEPARATE struct client *find_client(long id) {
    for (struct client *one = clients; one; one = one->next)
        if (one->id == id) return one;
    return NULL;
}
SEPARATE long read_number(const int *numbers, long at) { return numbers[at]; }

int main(int count, char **words) {
    const char *word = words[count - 1];
    struct client *third = NULL;
    for (int at = 0; at < 5; at++) {
        struct client *one = malloc(sizeof *one);
        *one = (struct client){at, "name", clients, close_client};
        table[at] = clients = one;
        third = at == 2 ? one : third;
    }
    int *numbers = calloc(100, sizeof *numbers);
    fprintf(stderr, "client=%p numbers=%p\n", (void *)third, (void *)numbers);
    if (!strcmp(word, "member")) { third->name = NULL; return (int)count_letters(clients); }
    if (!strcmp(word, "list")) { third->next = (void *)0x646e692f20544547; return (int)sum_ids(clients); }
    if (!strcmp(word, "called")) { third->close = NULL; close_all(clients); }
    if (!strcmp(word, "table")) return (int)sum_table(count + 6);
    if (!strcmp(word, "result")) return (int)find_client(7)->id;
    if (!strcmp(word, "variable")) return getenv("NO_SUCH_VARIABLE")[0];
    if (!strcmp(word, "index")) return (int)read_number(numbers, 50000000 + count);
    int read_signed(const int *, int), read_passed(struct client *), read_last(struct client *);
    if (!strcmp(word, "negative")) return read_signed(numbers, -2000000000 - count);
    if (!strcmp(word, "passed")) { third->name = NULL; return read_passed(third); }
    if (!strcmp(word, "consumed")) return read_last(third);
    if (!strcmp(word, "trap")) __builtin_trap();
    long sum_bytes(const volatile char *, long); /* numbers that other words equal by chance: the member _offset of a FILE, and a size */
    if (!strcmp(word, "failed")) return fopen("/dev/null", "r") ? (int)sum_bytes((char *)-1L, count) : 0;
    void free_both(int *); long sum_names(struct client *); /* of a list in which the next structure is the first member */
    if (!strcmp(word, "linked")) { free_both(numbers); return (int)sum_names(table[0]); }
    if (!strcmp(word, "sized")) { *(volatile long *)numbers = 1234567; return (int)sum_bytes((char *)1234567L, count); }
    return 0;
}

SEPARATE int read_signed(const int *numbers, int at) { return numbers[at]; }
static __attribute__((noipa)) int read_text(const char *text) { return text[2]; }
SEPARATE int read_passed(struct client *one) { return read_text(one->name) + (int)one->id; }
SEPARATE int read_last(struct client *one) { /* the text is wrong, and was loaded before the structure was freed */
    char *volatile wrong = (char *)0x123456789000;
    one->next = (struct client *)wrong, wrong = NULL;
    asm volatile("" ::: "memory");
    char *text = (char *)one->next;
    free(one);
    return text[2];
}
SEPARATE long sum_bytes(const volatile char *bytes, long count) {
    long sum = 0;
    for (long at = 0; at < count; at++) sum += bytes[at];
    return sum;
}
SEPARATE long sum_names(struct client *one) {
    long sum = 0;
    for (; one; one = *(struct client **)one) sum += one->close != NULL;
    return sum;
}
SEPARATE void free_both(int *numbers) { /* glibc writes the same word into both blocks */
    table[0]->id = (long)table[1];
    free(table[1]), free(numbers);
}
