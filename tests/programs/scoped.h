/* Shared by programs that call a function inside and outside of scopes: counters by place, and waiting between threads.
 *
 * A program defines PLACES(X) as X(function, frames, outside): `frames` are the functions of the stack from the place on, innermost first, up
 * to `work`; `outside` is 1 where its calls are made outside a scope. Each place counts what it calls. The program prints "ready", waits for a
 * file "go" in its folder; when all of its threads have made their calls, "GUARDED;FRAMES COUNT OUTSIDE" for each place, then "done". */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline, noclone))

#define NUMBER(function, frames, outside) AT_##function,
enum { PLACES(NUMBER) PLACE_COUNT };
static long calls_of[PLACE_COUNT];
static int threads_left;

#define COUNT(function) __atomic_add_fetch(&calls_of[AT_##function], 1, __ATOMIC_SEQ_CST)

static void wait_for(const char *file) {
  while (access(file, F_OK)) usleep(10000);
}

/* For each thread, after its calls. The last thread prints the result. */
static void made(const char *guarded) {
  if (__atomic_sub_fetch(&threads_left, 1, __ATOMIC_SEQ_CST)) return;
#define TELL(function, frames, outside) \
  printf("%s;%s %ld %ld\n", guarded, frames, calls_of[AT_##function], outside ? calls_of[AT_##function] : 0);
  PLACES(TELL)
  puts("done");
  fflush(stdout);
}

/* Then the first thread makes one more call for each file "again". */
static int again(void) {
  wait_for("again");
  unlink("again");
  return 1;
}

static void alive(void) {
  puts("alive");
  fflush(stdout);
}
