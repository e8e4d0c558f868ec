/* Sessions that several roots refer to (a list and an index), and others that several fields of one root refer to. Makes MORE of each for
 * each line that it reads, prints how many there are, then "ready". */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MORE 2000
#define MOST 20000

struct session {
    struct session *next;
    char *buffer;
    char name[64];
};

struct list {
    struct session *first;
    long count;
};

struct list by_time;
struct session **by_number;
struct {
    struct session **all;
    struct session *first;
} server;

static struct session *make(struct session **first, struct session **place) {
    struct session *made = calloc(1, sizeof *made);
    made->buffer = malloc(1000);
    memset(made->buffer, 'x', 999);
    made->buffer[999] = 0;
    made->next = *first;
    return *first = *place = made;
}

int main(void) {
    char line[16];
    long sum = 0;
    int number = 0;
    by_number = calloc(MOST, sizeof *by_number);
    server.all = calloc(MOST, sizeof *server.all);
    do {
        for (int i = 0; i < MORE && number < MOST; i++, number++) {
            by_time.count += make(&by_time.first, &by_number[number]) != NULL;
            sum += make(&server.first, &server.all[number])->name[0];
        }
        printf("%d\nready\n", number);
        fflush(stdout);
    } while (fgets(line, sizeof line, stdin));
    pause();
    return sum != 0;
}
