/* A process with blocks of every kind for tests of the front ends. Some are held only by a thread's register.
   Prints each block as "name address", then "ready", and waits. On SIGUSR1 it prints "goes on".
   usage: doors [EXTRA BLOCKS] */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct node {
  struct node *next;
  char text[40];
};

struct pair {
  int first, second;
} g_pair;

struct node *g_list;
struct node *g_extra;
char g_array[64];
void *volatile g_interior;

/* Complements of addresses: no pointer to the blocks is in memory. */
enum { GENERAL, VECTOR, LOST, LEADER, HIDDEN };
static uintptr_t hidden[HIDDEN];
static const char *const names[HIDDEN] = {"general", "vector", "lost", "leader"};

static void *hold(void *unused) {
  (void)unused;
#ifdef __aarch64__
  __asm__ volatile(
      "ldr x19, %0\n mvn x19, x19\n"
      "ldr x9, %1\n mvn x9, x9\n movi v9.2d, #0\n mov v9.d[1], x9\n mov x9, #0\n"
      "1: mov x0, #0\n mov x1, #0\n mov x2, #0\n mov x3, #0\n mov x4, #0\n mov x8, #73\n svc #0\n b 1b\n" /* ppoll */
      :
      : "m"(hidden[GENERAL]), "m"(hidden[VECTOR])
      : "x0", "x1", "x2", "x3", "x4", "x8", "x9", "x19", "v9", "memory");
#else
  __asm__ volatile(
      "mov %0, %%rbx\n not %%rbx\n"
      "mov %1, %%rax\n not %%rax\n"
      "movq %%rax, %%xmm9\n pslldq $8, %%xmm9\n"
      "1: mov $34, %%eax\n syscall\n movmskpd %%xmm9, %%eax\n jmp 1b\n" /* pause; xmm9 is read afterwards */
      :
      : "m"(hidden[GENERAL]), "m"(hidden[VECTOR])
      : "rax", "rbx", "rcx", "r11", "xmm9", "memory");
#endif
  return NULL;
}

static struct node *node(struct node *next) {
  struct node *made = malloc(sizeof *made);
  strcpy(made->text, "a node of a list");
  made->next = next;
  return made;
}

static void __attribute__((noinline)) make(long extra) {
  for (int i = 0; i < 10; i++) g_list = node(g_list);
  for (long i = 0; i < extra; i++) g_extra = node(g_extra);
  for (int i = 0; i < LEADER; i++) {
    char *block = malloc(1000 + 100 * i);
    memset(block, 'r', 1000);
    hidden[i] = ~(uintptr_t)block;
  }
  struct node *leader = node(node(node(NULL)));
  hidden[LEADER] = ~(uintptr_t)leader;
  char *block = malloc(3000);
  g_interior = block + 64;
  printf("first %p\ninterior %p\n", (void *)g_list, (void *)block);
  g_pair.first = 1;
}

/* Overwrite what make() has left in registers and on the stack. */
static void __attribute__((noinline)) sweep(void) {
  volatile char waste[1 << 16];
  memset((char *)waste, 0, sizeof waste);
  for (int i = 0; i < HIDDEN; i++) printf("%s %#lx\n", names[i], ~hidden[i]);
}

static void go_on(int unused) {
  (void)unused;
  if (write(1, "goes on\n", 8) != 8) abort();
}

int main(int argc, char **argv) {
  pthread_t thread;
  signal(SIGUSR1, go_on);
  make(argc > 1 ? atol(argv[1]) : 0);
  sweep();
  pthread_create(&thread, NULL, hold, NULL);
  printf("ready\n");
  fflush(stdout);
  for (;;) pause();
}
