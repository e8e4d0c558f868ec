/* For any Node: prints how many handles V8 itself counts, and stops, while it is being loaded as an addon. */
#include <stdio.h>
#include <unistd.h>

__attribute__((weak)) extern int counted(void *isolate) __asm__("_ZN2v811HandleScope15NumberOfHandlesEPNS_7IsolateE");
__attribute__((weak)) extern int counted_0_10(void) __asm__("_ZN2v811HandleScope15NumberOfHandlesEv");
extern void *current(void) __asm__("_ZN2v87Isolate10GetCurrentEv");

__attribute__((constructor)) static void stop(void) {
  printf("handles %d\nready\n", counted ? counted(current()) : counted_0_10());
  fflush(stdout);
  for (;;) pause();
}
