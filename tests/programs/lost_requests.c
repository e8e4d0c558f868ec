/* A server with COUNT sessions in a list. Each session has a request with three headers, and a header is as large as a session. LOST further
 * requests are leaked.
 * Usage: lost_requests COUNT LOST. Prints "ready" and waits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct header {
    char *name, *value;
    struct header *next;
};
struct request {
    int number;
    struct header *headers;
    char *body;
    void *user;
};
struct session { /* as large as a header */
    struct request *current;
    struct session *next;
};

static struct session *sessions;

static struct request *read_request(int number) {
    struct request *made = calloc(1, sizeof *made);
    made->number = number;
    made->body = strdup("body of a request");
    for (int i = 0; i < 3; i++) {
        struct header *header = malloc(sizeof *header);
        header->name = strdup("Header");
        header->value = strdup("value of a header");
        header->next = made->headers;
        made->headers = header;
    }
    return made;
}

int main(int count, char **words) {
    if (count < 3) return 2;
    for (int i = 0; i < atoi(words[1]); i++) {
        struct session *made = malloc(sizeof *made);
        made->current = read_request(i);
        made->next = sessions;
        sessions = made;
    }
    for (int i = 0; i < atoi(words[2]); i++) read_request(-i);
    puts("ready");
    fflush(stdout);
    pause();
}
