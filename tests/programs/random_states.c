/* Leaks COUNT blocks of SIZE bytes, after THREADS threads have drawn random numbers by getrandom, of which every second has ended. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <unistd.h>

enum { THREADS = 60, COUNT = 3, SIZE = 776 };
static pthread_barrier_t drawn;
static void *volatile last;

static void *draw(void *number) {
  char bytes[16];
  if (getrandom(bytes, sizeof bytes, 0) != sizeof bytes) abort();
  pthread_barrier_wait(&drawn);
  if ((size_t)number % 2) return NULL;
  for (;;) pause();
}

static void __attribute__((noinline)) leak(void) {
  for (int at = 0; at < COUNT; at++) last = calloc(1, SIZE);
  last = NULL;
}

static void __attribute__((noinline)) sweep(void) {
  volatile char waste[1 << 14];
  for (unsigned at = 0; at < sizeof waste; at++) waste[at] = 0;
}

int main(void) {
  pthread_t threads[THREADS];
  pthread_barrier_init(&drawn, NULL, THREADS + 1);
  for (size_t at = 0; at < THREADS; at++)
    if (pthread_create(&threads[at], NULL, draw, (void *)at)) abort();
  pthread_barrier_wait(&drawn);
  for (size_t at = 1; at < THREADS; at += 2) pthread_join(threads[at], NULL);
  leak();
  sweep();
  puts("ready");
  fflush(stdout);
  for (;;) pause();
}
