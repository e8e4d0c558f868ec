/* A server with sessions, for the Python API: a table of them in a global variable, and requests that nothing refers to any more.
   Prints "session ADDRESS SIZE", "head ADDRESS SIZE", "indirect ADDRESS SIZE" for each block with its usable size, "retained BLOCKS BYTES"
   for what g_sessions retains, then "ready"; on SIGUSR1 it leaks as many requests again, and prints them and "again".
   usage: sessions SESSIONS REQUESTS */
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct session {
  char *user;
  long number;
  char state[80];
};

struct request {
  char *body;
  long number;
  char head[184];
};

struct session **g_sessions;
static size_t retained_blocks, retained_bytes;
static volatile sig_atomic_t asked;

static void *keep(void *block) {
  retained_blocks++;
  retained_bytes += malloc_usable_size(block);
  return block;
}

__attribute__((noinline)) static void fill(long count) {
  g_sessions = keep(calloc(count, sizeof *g_sessions));
  for (long i = 0; i < count; i++) {
    struct session *made = keep(calloc(1, sizeof *made));
    made->user = keep(malloc(32));
    snprintf(made->user, 32, "user number %ld", i);
    made->number = i;
    g_sessions[i] = made;
    printf("session %p %zu\n", (void *)made, malloc_usable_size(made));
  }
}

__attribute__((noinline)) static void leak(long count) {
  for (long i = 0; i < count; i++) {
    struct request *volatile lost = calloc(1, sizeof *lost);
    lost->body = malloc(100);
    memset(lost->body, 'x', 99);
    lost->body[99] = 0;
    printf("head %p %zu\n", (void *)lost, malloc_usable_size(lost));
    printf("indirect %p %zu\n", (void *)lost->body, malloc_usable_size(lost->body));
    lost = NULL;
  }
}

/* No unused part of the stack may contain a request's address, because later frames may include it. */
__attribute__((noinline)) static void scrub(void) {
  char room[16384];
  memset(room, 0, sizeof room);
  __asm__ volatile("" : : "r"(room) : "memory");
}

static void ask(int number) {
  (void)number;
  asked = 1;
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  signal(SIGUSR1, ask);
  fill(atol(argv[1]));
  leak(atol(argv[2]));
  scrub();
  printf("retained %zu %zu\nready\n", retained_blocks, retained_bytes);
  fflush(stdout);
  for (;;) {
    pause();
    if (!asked) continue;
    asked = 0;
    leak(atol(argv[2]));
    scrub();
    puts("again");
    fflush(stdout);
  }
}
