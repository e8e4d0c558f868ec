/* A module of CPython's whose threads call PyLong_AsLong with the global interpreter lock and, in places, without: run(THREADS), and
 * work(TIMES), which threads of Python's own call. See scoped.h. */
#include "pymalloc_api.h"
#include <pthread.h>

#define PLACES(X) \
  X(forgets, "forgets;work", 1) X(ensured, "ensured;work", 0) X(nested, "nested;work", 0) X(lets_go, "lets_go;work", 1) X(of_python, "of_python", 0)
#include "scoped.h"

int PyGILState_Ensure(void);
void PyGILState_Release(int);
void *PyEval_SaveThread(void);
void PyEval_RestoreThread(void *);
long PyLong_AsLong(object *);

#define TAKES_ONE 8 /* METH_O */

static object *number;

NOINLINE void forgets(void) {
  PyLong_AsLong(number);
  COUNT(forgets);
}

NOINLINE void ensured(void) {
  int state = PyGILState_Ensure();
  PyLong_AsLong(number);
  COUNT(ensured);
  PyGILState_Release(state);
}

NOINLINE void nested(void) {
  int state = PyGILState_Ensure(), inner = PyGILState_Ensure();
  PyGILState_Release(inner);
  PyLong_AsLong(number);
  COUNT(nested);
  PyGILState_Release(state);
}

NOINLINE void lets_go(void) {
  int state = PyGILState_Ensure();
  void *kept = PyEval_SaveThread();
  PyLong_AsLong(number);
  COUNT(lets_go);
  PyEval_RestoreThread(kept);
  PyGILState_Release(state);
}

NOINLINE static void *work(void *argument) {
  wait_for("go");
  for (long i = 0; i < (long)argument; i++) {
    forgets();
    ensured();
    ensured();
    nested();
    lets_go();
  }
  made("PyLong_AsLong");
  return 0;
}

/* Called by Python's threads, which hold the lock. */
NOINLINE static object *of_python(object *self, object *unused) {
  (void)self, (void)unused;
  void *kept = PyEval_SaveThread();
  wait_for("go");
  PyEval_RestoreThread(kept);
  for (int i = 0; i < 25; i++) {
    PyLong_AsLong(number);
    COUNT(of_python);
  }
  made("PyLong_AsLong");
  return PyLong_FromLong(0);
}

/* Starts the threads of C code; `number` says how many there are in all. */
static object *run(object *self, object *given) {
  pthread_t id;
  long all = PyLong_AsLong(given);
  (void)self;
  number = PyLong_FromLong(123456789);
  threads_left = (int)all;
  for (long i = 1; i < all; i++)
    if (pthread_create(&id, 0, work, (void *)(10 * i))) return 0;
  PyEval_SaveThread();
  puts("ready");
  fflush(stdout);
  while (again()) {
    forgets();
    ensured();
    alive();
  }
  return 0;
}

static method methods[] = {{"run", run, TAKES_ONE, ""}, {"of_python", of_python, TAKES_NOTHING, ""}, {0, 0, 0, 0}};
static module_definition module = {{1, 0}, 0, 0, 0, "gil_scoped", "", -1, methods, 0, 0, 0, 0};

object *PyInit_gil_scoped(void) { return PyModule_Create2(&module, ABI); }
