/* Threads that call `event` while another one loads and unloads a library, or takes a SIGSEGV that it has a handler for, again and again,
 * or that send each other SIGALRM: THREADS CALLS LIBRARY|faults|alarms. Prints "ready", waits for a file "go" in its folder; prints
 * "done", and how often the signal's handler ran, when the calls are made. Ends for a file "end". */
#include <dlfcn.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static volatile int ended;
static int calls, alarming;
static const char *library;

__attribute__((noinline, noclone)) void event(volatile int *n) { *n += 1; }

static void *work(void *unused) {
  volatile int n = 0;
  for (int i = 0; i < calls; i++) {
    event(&n);
    if (alarming && i % 4 == 3) kill(getpid(), SIGALRM); /* the kernel chooses the thread that receives it */
  }
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

static volatile int alarms;

static void on_alarm(int number) {
  (void)number;
  __atomic_fetch_add(&alarms, 1, __ATOMIC_RELAXED);
}

static void *waits(void *unused) {
  while (!ended) usleep(1000);
  return unused;
}

static void block(int how, int number) {
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, number);
  pthread_sigmask(how, &one, 0);
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
  alarming = !strcmp(library, "alarms");
  signal(SIGALRM, on_alarm);
  block(SIG_BLOCK, SIGALRM);
  void *(*does)(void *) = !strcmp(library, "faults") ? faults : alarming ? waits : loads;
  if (pthread_create(&beside, 0, does, 0)) return 1;
  block(SIG_UNBLOCK, SIGALRM);
  for (int i = 0; i < threads; i++)
    if (pthread_create(&ids[i], 0, work, 0)) return 1;
  block(SIG_BLOCK, SIGALRM);
  for (int i = 0; i < threads; i++) pthread_join(ids[i], 0);
  ended = 1;
  pthread_join(beside, 0);
  printf("done %d\n", alarms);
  fflush(stdout);
  while (access("end", F_OK)) usleep(10000);
}
