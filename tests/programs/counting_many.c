/* Calls `event` through as many different stacks, again and again: STACKS. Prints "ready" first. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

NOINLINE void event(volatile int *n) { *n += 1; }
NOINLINE void one(volatile int *n, int path);

NOINLINE void zero(volatile int *n, int path) {
  if (path < 2)
    event(n);
  else
    (path & 1 ? one : zero)(n, path / 2);
  *n += 1;
}

NOINLINE void one(volatile int *n, int path) {
  if (path < 2)
    event(n);
  else
    (path & 1 ? one : zero)(n, path / 2);
  *n += 2;
}

int main(int count, char **words) {
  volatile int n = 0;
  int stacks = count > 1 ? atoi(words[1]) : 1;
  puts("ready");
  fflush(stdout);
  sleep(1);
  for (;;) {
    for (int path = stacks; path < 2 * stacks; path++) zero(&n, path);
    usleep(1000);
  }
}
