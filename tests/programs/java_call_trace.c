/* An agent of a JVM. A thread that gets SIGUSR1 stores its Java frames with AsyncGetCallTrace, at the instruction at which it was
   interrupted. Another thread prints them: class, method, and line, innermost first, then "end"; or "none" and a number. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <jvmti.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <unistd.h>

enum { MOST = 2000 };

typedef struct {
  jint bytecode;
  jmethodID method;
} Frame;

typedef struct {
  JNIEnv *env;
  jint count;
  Frame *frames;
} Trace;

static JavaVM *vm;
static jvmtiEnv *tools;
static void (*get_trace)(Trace *, jint, void *);
static Frame frames[MOST];
static volatile jint count;
static volatile sig_atomic_t is_stored;

static void store(int number, siginfo_t *info, void *context) {
  Trace trace = {NULL, 0, frames};
  (void)number, (void)info;
  if ((*vm)->GetEnv(vm, (void **)&trace.env, JNI_VERSION_1_6) == JNI_OK) get_trace(&trace, MOST, context);
  count = trace.count;
  is_stored = 1;
}

static int line_of(const Frame *frame) {
  jvmtiLineNumberEntry *lines;
  jint number = 0;
  int found = 0;
  if (frame->bytecode < 0 || (*tools)->GetLineNumberTable(tools, frame->method, &number, &lines)) return 0;
  jlocation best = -1;
  for (jint at = 0; at < number; at++) {
    if (lines[at].start_location <= frame->bytecode && lines[at].start_location > best) best = lines[at].start_location, found = lines[at].line_number;
  }
  return found;
}

static void *print(void *nothing) {
  JNIEnv *env;
  (void)nothing;
  if ((*vm)->AttachCurrentThreadAsDaemon(vm, (void **)&env, NULL)) abort();
  for (;; usleep(1000)) {
    if (!is_stored) continue;
    is_stored = 0;
    if (count <= 0) printf("none %d\n", count);
    for (jint at = 0; at < count; at++) {
      char *name = NULL, *holder = NULL;
      jclass class = NULL;
      (*tools)->GetMethodName(tools, frames[at].method, &name, NULL, NULL);
      (*tools)->GetMethodDeclaringClass(tools, frames[at].method, &class);
      if (class) (*tools)->GetClassSignature(tools, class, &holder, NULL);
      printf("%s %s %d\n", holder ? holder : "?", name ? name : "?", line_of(&frames[at]));
    }
    printf("end\n");
    fflush(stdout);
  }
  return NULL;
}

/* AsyncGetCallTrace returns only methods with an identifier. This gives an identifier to each method of a class. */
static void identify(jclass class) {
  jint number;
  jmethodID *methods;
  if (!(*tools)->GetClassMethods(tools, class, &number, &methods)) (*tools)->Deallocate(tools, (unsigned char *)methods);
}

static void JNICALL prepare(jvmtiEnv *environment, JNIEnv *env, jthread thread, jclass class) {
  (void)environment, (void)env, (void)thread;
  identify(class);
}

static void JNICALL load(jvmtiEnv *environment, JNIEnv *env, jthread thread, jclass class) {
  (void)environment, (void)env, (void)thread, (void)class;
}

static void JNICALL begin(jvmtiEnv *environment, JNIEnv *env, jthread thread) {
  struct sigaction action = {.sa_sigaction = store, .sa_flags = SA_SIGINFO | SA_RESTART};
  jclass *classes;
  jint number;
  pthread_t printer;
  (void)environment, (void)env, (void)thread;
  if ((*tools)->GetLoadedClasses(tools, &number, &classes)) abort();
  while (number-- > 0) identify(classes[number]);
  if (sigaction(SIGUSR1, &action, NULL) || pthread_create(&printer, NULL, print, NULL)) abort();
}

JNIEXPORT jint JNICALL Agent_OnLoad(JavaVM *machine, char *options, void *reserved) {
  jvmtiEventCallbacks callbacks = {.ClassPrepare = prepare, .ClassLoad = load, .VMInit = begin};
  jvmtiCapabilities wanted = {.can_get_line_numbers = 1};
  (void)options, (void)reserved;
  vm = machine;
  get_trace = (void (*)(Trace *, jint, void *))dlsym(RTLD_DEFAULT, "AsyncGetCallTrace");
  if (!get_trace || (*vm)->GetEnv(vm, (void **)&tools, JVMTI_VERSION_1_2)) return JNI_ERR;
  if ((*tools)->AddCapabilities(tools, &wanted) || (*tools)->SetEventCallbacks(tools, &callbacks, sizeof callbacks)) return JNI_ERR;
  jvmtiEvent events[] = {JVMTI_EVENT_CLASS_PREPARE, JVMTI_EVENT_CLASS_LOAD, JVMTI_EVENT_VM_INIT};
  for (int at = 0; at < 3; at++) {
    if ((*tools)->SetEventNotificationMode(tools, JVMTI_ENABLE, events[at], NULL)) return JNI_ERR;
  }
  return JNI_OK;
}
