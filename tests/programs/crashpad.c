/* Crashes, and lets Crashpad's handler write a minidump, as Crashpad's own client does (client/crashpad_client_linux.cc): the signal's
   handler starts the program, which traces its parent. Prints the crashed thread's id and a block's address first.
   usage: crashpad HANDLER FOLDER */
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *handler, *folder;
static void *volatile g_block;

/* util/linux/exception_information.h */
static struct __attribute__((packed)) {
  uint64_t siginfo, context;
  pid_t thread;
} exception;

static void dump(int number, siginfo_t *info, void *context) {
  char trace[64], database[4096];
  (void)number;
  exception.siginfo = (uintptr_t)info;
  exception.context = (uintptr_t)context;
  exception.thread = (pid_t)syscall(SYS_gettid);
  snprintf(trace, sizeof trace, "--trace-parent-with-exception=%p", (void *)&exception);
  snprintf(database, sizeof database, "--database=%s", folder);
  prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  pid_t child = fork();
  if (!child) {
    execl(handler, handler, trace, database, (char *)NULL);
    _exit(127);
  }
  int status;
  waitpid(child, &status, 0);
  _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

static void __attribute__((noinline)) fault(volatile int *at) { *at = 1; }

static void *other(void *unused) {
  (void)unused;
  for (;;) pause();
  return NULL;
}

int main(int argc, char **argv) {
  pthread_t thread;
  struct sigaction action = {.sa_sigaction = dump, .sa_flags = SA_SIGINFO};
  if (argc < 3) return 2;
  handler = argv[1];
  folder = argv[2];
  g_block = malloc(100);
  pthread_create(&thread, NULL, other, NULL);
  sigaction(SIGSEGV, &action, NULL);
  printf("%d %p\n", (int)getpid(), g_block);
  fflush(stdout);
  fault((volatile int *)8);
  return 0;
}
