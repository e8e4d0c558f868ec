/* Threads that call `event` while another one loads and unloads a library, or takes a SIGSEGV that it has a handler for, again and again:
 * THREADS CALLS LIBRARY|faults. Prints "ready", waits for a file "go" in its folder; prints "done" when the calls are made. */
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static volatile int ended;
static int calls;
static const char *library;

__attribute__((noinline, noclone)) void event(volatile int *n) { *n += 1; }

static void *work(void *unused) {
  volatile int n = 0;
  for (int i = 0; i < calls; i++) event(&n);
  return unused;
}

static void *loads(void *unused) {
  while (!ended) {
    void *loaded = dlopen(library, RTLD_NOW);
    if (!loaded) exit(3);
    dlclose(loaded);
  }
  return unused;
}

static sigjmp_buf before;

static void on_fault(int number) {
  (void)number;
  siglongjmp(before, 1);
}

static void *faults(void *unused) {
  volatile int *volatile nowhere = 0;
  signal(SIGSEGV, on_fault);
  while (!ended)
    if (!sigsetjmp(before, 1)) *nowhere = 1;
  return unused;
}

int main(int count, char **words) {
  pthread_t ids[16], beside;
  int threads = count > 3 ? atoi(words[1]) : 0;
  if (threads < 1 || threads > 16) return 2;
  calls = atoi(words[2]);
  library = words[3];
  puts("ready");
  fflush(stdout);
  while (access("go", F_OK)) usleep(10000);
  if (pthread_create(&beside, 0, strcmp(library, "faults") ? loads : faults, 0)) return 1;
  for (int i = 0; i < threads; i++)
    if (pthread_create(&ids[i], 0, work, 0)) return 1;
  for (int i = 0; i < threads; i++) pthread_join(ids[i], 0);
  ended = 1;
  pthread_join(beside, 0);
  puts("done");
  fflush(stdout);
  for (;;) pause();
}
