/* A library, or the C part of a Go program, with a mapping that has the only pointers to blocks. When loaded, it prints "mapping ADDRESS
   SIZE", "block ADDRESS" for each block, and "lost ADDRESS" for those that nothing points to.
   LACKING: whole: cores have the mapping; excluded: MADV_DONTDUMP, a static variable points to it; inner: the same, a block points to it. */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SIZE = 1 << 20, BLOCKS = 100, LOST = 3 };
void **lacking_table; /* not static: no code reads them */
struct lacking_owner {
  char name[40];
  void **table;
} *lacking_owner;

static void lacking_say(const char *what, const void *address, unsigned size) {
  char line[80];
  int length = snprintf(line, sizeof line, size ? "%s %p %u\n" : "%s %p\n", what, address, size);
  if (write(1, line, (size_t)length) != length) abort();
}

static void *lacking_block(const char *what) {
  void *made = calloc(1, 344);
  lacking_say(what, made, 0);
  return made;
}

static void lacking_sweep(void) {
  volatile char waste[1 << 14];
  for (unsigned at = 0; at < sizeof waste; at++) waste[at] = 0;
}

static void __attribute__((noinline)) lacking_fill(const char *kind) {
  void **table = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (table == MAP_FAILED || (strcmp(kind, "whole") && madvise(table, SIZE, MADV_DONTDUMP))) abort();
  lacking_say("mapping", table, SIZE);
  for (int at = 0; at < BLOCKS; at++) table[at] = lacking_block("block");
  for (int at = 0; at < LOST; at++) *(volatile char *)lacking_block("lost") = 0;
  if (strcmp(kind, "inner")) {
    lacking_table = table;
  } else {
    lacking_owner = calloc(1, sizeof *lacking_owner);
    lacking_owner->table = table;
  }
}

__attribute__((constructor)) static void lacking_load(void) {
  const char *kind = getenv("LACKING");
  if (!kind) return;
  unsetenv("LACKING"); /* for programs that it starts */
  lacking_fill(kind);
  lacking_sweep();
}
