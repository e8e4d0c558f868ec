/* Arrays of many pointers, many structures that are alike, and structures that begin by chance as something else.
 * Prints of each variable: its name, how many elements, how many blocks it retains, and their usable bytes; then waits.
 * usage: roots_arrays COUNT */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ROOM 120000
#define SESSIONS 200

struct record {
    long id;
    char *name;
    long flags;
};

struct session {
    long id;
    char *user, *address;
    struct session *parts[2];
};

struct slot {
    long key;
    struct session *session;
};

struct three {
    char *text;
    struct record *record;
    void *other;
};

struct four {
    struct record *first, *second, *third, *fourth;
};

struct text {
    char *start, *at, *end;
};

void *table[ROOM];
void **heap;
struct record *records;
struct slot sessions[SESSIONS];
struct three *three;
struct four *four;
struct text text;

static long counted_blocks, counted_bytes;

static void *made(size_t size) {
    void *block = calloc(1, size);
    if (!block)
        abort();
    counted_blocks++;
    counted_bytes += (long)malloc_usable_size(block);
    return block;
}

static char *written(size_t size) {
    char *block = made(size);
    memset(block, 'x', size - 1);
    return block;
}

static void say(const char *name, long length) {
    printf("%s %ld %ld %ld\n", name, length, counted_blocks, counted_bytes);
    counted_blocks = counted_bytes = 0;
}

int main(int argc, char **argv) {
    long count = argc > 1 ? atol(argv[1]) : 100000, held = 0;
    if (count > ROOM)
        return 2;
    for (long at = 0; at < count; at++) /* every seventh slot is empty; blocks have ten sizes */
        if (at % 7) {
            table[at] = made(24 + 16 * (size_t)(at % 10));
            held++;
        }
    say("table", held);
    heap = made((size_t)count * sizeof *heap);
    for (long at = 0; at < count; at++)
        heap[at] = made(24 + 16 * (size_t)(at * 7 % 10));
    say("heap", count);
    records = made((size_t)count * sizeof *records);
    for (long at = 0; at < count; at++)
        records[at] = (struct record){at + 1, written(24), 1};
    say("records", count);
    for (long at = 0; at < SESSIONS; at++) {
        struct session *one = made(sizeof *one);
        *one = (struct session){at, written(40), written(72), {made(sizeof *one), made(sizeof *one)}};
        sessions[at] = (struct slot){at + 1, one};
    }
    say("sessions", SESSIONS);
    three = made(sizeof *three);
    *three = (struct three){written(100), made(sizeof(struct record)), made(400)};
    three->record->name = written(56);
    say("three", 3);
    four = made(sizeof *four + 8); /* looks like an array by its content */
    *four = (struct four){made(24), made(24), made(24), made(24)};
    say("four", 4);
    text.start = written(4000);
    text.at = text.start + 1000;
    text.end = text.start + 4000;
    say("text", 1);
    printf("ready\n");
    fflush(stdout);
    for (;;)
        pause();
}
