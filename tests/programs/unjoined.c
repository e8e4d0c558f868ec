/* Usage: unjoined JOINABLE JOINED DETACHED STAYING. The arguments are numbers of threads: threads that end and are not joined, that end and
 * are joined, that end and are detached, and that do not end. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RESULT 1000

static size_t bytes = 20000;

static void *ends(void *word) {
  volatile char deep[20000];
  memset((void *)deep, 1, sizeof deep);
  __asm__ volatile("" : : "r"(deep) : "memory"); /* keeps GCC from removing the array */
  void *result = malloc(RESULT);
  memset(result, 0, RESULT);
  return word ? result : 0;
}

static void *stays(void *word) {
  for (;;) pause();
  return word;
}

static pthread_t make(void *(*run)(void *), int detached) {
  pthread_attr_t how;
  pthread_t made;
  pthread_attr_init(&how);
  pthread_attr_setstacksize(&how, 256 << 10);
  if (detached) pthread_attr_setdetachstate(&how, PTHREAD_CREATE_DETACHED);
  if (pthread_create(&made, &how, run, &bytes)) exit(1);
  pthread_attr_destroy(&how);
  return made;
}

int main(int argc, char **argv) {
  if (argc < 5) return 2;
  int joinable = atoi(argv[1]), joined = atoi(argv[2]), detached = atoi(argv[3]), staying = atoi(argv[4]);
  pthread_t *asked = calloc(joined + 1, sizeof *asked);
  for (int i = 0; i < staying; i++) make(stays, 0);
  for (int i = 0; i < joinable; i++) make(ends, 0);
  for (int i = 0; i < joined; i++) asked[i] = make(ends, 0);
  for (int i = 0; i < joined; i++) pthread_join(asked[i], 0);
  for (int i = 0; i < detached; i++) make(ends, 1);
  free(asked);
  usleep(300000);
  puts("ready");
  fflush(stdout);
  for (;;) pause();
}
