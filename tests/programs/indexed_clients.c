/* A server whose clients are in a list and in an index, as those of most servers are. One client does not read its replies.
 * Prints the address of that client, the number of its replies, and the addresses of the others; then "ready", and waits. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CLIENTS 40
#define REPLIES 400 /* or the program's argument */
#define SIZE 16000

struct reply {
    struct reply *next;
    char text[SIZE - sizeof(void *)];
};
struct client {
    struct client *next;
    long number;
    struct reply *replies;
    char name[200];
};

static struct {
    long started;
    struct client *clients;
    struct client **index;
} server;

int main(int count, char **words) {
    int replies = count > 1 ? atoi(words[1]) : REPLIES;
    server.index = calloc(CLIENTS, sizeof *server.index);
    for (int i = 0; i < CLIENTS; i++) {
        struct client *made = calloc(1, sizeof *made);
        made->number = i;
        made->next = server.clients;
        server.clients = server.index[i] = made;
        for (int reply = 0; reply < (i == 17 ? replies : 1); reply++) {
            struct reply *one = malloc(sizeof *one);
            memset(one->text, 'r', sizeof one->text - 1);
            one->text[sizeof one->text - 1] = 0;
            one->next = made->replies;
            made->replies = one;
        }
    }
    printf("%p %d\n", (void *)server.index[17], replies);
    puts("ready");
    fflush(stdout);
    pause();
    return 0;
}
