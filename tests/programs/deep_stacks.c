/* A thread with a large stack.
 * recursion: parse and parse_value call each other, COUNT times. Each frame of parse has 64 KiB.
 * frame: one frame of read_file has COUNT * 64 KiB.
 * returned: like recursion, but the calls have returned.
 * Usage: deep_stacks recursion|frame|returned COUNT. Prints "ready" and waits. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FRAME (64 << 10)

static int count;
static const char *kind;

static void parse_value(int level);

static void wait_for_reader(void) {
    puts("ready");
    fflush(stdout);
    pause();
}

__attribute__((noinline, noclone)) static void parse(int level) {
    volatile char token[FRAME];
    for (size_t at = 0; at < sizeof token; at += 512) token[at] = (char)level;
    parse_value(level + 1);
    token[0] = 1;
}

__attribute__((noinline, noclone)) static void parse_value(int level) {
    volatile int used = level;
    if (level < count)
        parse(level);
    else if (!strcmp(kind, "recursion"))
        wait_for_reader();
    used++;
}

__attribute__((noinline, noclone)) static void read_file(void) {
    volatile char content[(size_t)count * FRAME];
    for (size_t at = 0; at < sizeof content; at += 512) content[at] = 1;
    wait_for_reader();
    content[0] = 2;
}

static void *start(void *unused) {
    if (!strcmp(kind, "frame"))
        read_file();
    else
        parse_value(0);
    wait_for_reader();
    return unused;
}

int main(int words, char **word) {
    if (words != 3) return 2;
    kind = word[1];
    count = atoi(word[2]);
    pthread_attr_t large;
    pthread_attr_init(&large);
    pthread_attr_setstacksize(&large, (size_t)(count + 4) * (FRAME + 1024));
    pthread_t thread;
    if (pthread_create(&thread, &large, start, NULL)) return 3;
    pthread_join(thread, NULL);
    return 0;
}
