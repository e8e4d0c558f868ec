/* A Node-API addon that makes objects in its own scopes or, in `forgets`, without one: work(TIMES, FIRST). See scoped.h. */
#include <stdlib.h>

#define PLACES(X) X(forgets, "forgets;work", 1) X(scoped, "scoped;work", 0) X(escapes, "escapes;work", 0) X(after, "after;work", 1)
#include "scoped.h"

typedef struct napi_env__ *napi_env;
typedef struct napi_value__ *napi_value;
typedef struct napi_scope__ *napi_scope;
typedef struct napi_info__ *napi_info;
typedef napi_value (*napi_callback)(napi_env, napi_info);

extern int napi_get_cb_info(napi_env, napi_info, size_t *, napi_value *, napi_value *, void **);
extern int napi_get_value_uint32(napi_env, napi_value, unsigned *);
extern int napi_create_object(napi_env, napi_value *);
extern int napi_create_function(napi_env, const char *, size_t, napi_callback, void *, napi_value *);
extern int napi_open_handle_scope(napi_env, napi_scope *);
extern int napi_close_handle_scope(napi_env, napi_scope);
extern int napi_open_escapable_handle_scope(napi_env, napi_scope *);
extern int napi_close_escapable_handle_scope(napi_env, napi_scope);

static void need(int status, const char *what) {
  if (status) {
    fprintf(stderr, "%s: status %d\n", what, status);
    exit(1);
  }
}

NOINLINE void forgets(napi_env env) {
  napi_value object;
  need(napi_create_object(env, &object), "napi_create_object");
  COUNT(forgets);
}

NOINLINE void scoped(napi_env env) {
  napi_scope scope;
  napi_value object;
  need(napi_open_handle_scope(env, &scope), "napi_open_handle_scope");
  need(napi_create_object(env, &object), "napi_create_object");
  COUNT(scoped);
  need(napi_close_handle_scope(env, scope), "napi_close_handle_scope");
}

NOINLINE void escapes(napi_env env) {
  napi_scope scope, inner;
  napi_value object;
  need(napi_open_escapable_handle_scope(env, &scope), "napi_open_escapable_handle_scope");
  need(napi_open_handle_scope(env, &inner), "napi_open_handle_scope");
  need(napi_close_handle_scope(env, inner), "napi_close_handle_scope");
  need(napi_create_object(env, &object), "napi_create_object");
  COUNT(escapes);
  need(napi_close_escapable_handle_scope(env, scope), "napi_close_escapable_handle_scope");
}

/* Its own scope is already closed when it makes its object. */
NOINLINE void after(napi_env env) {
  napi_scope scope;
  napi_value object;
  need(napi_open_handle_scope(env, &scope), "napi_open_handle_scope");
  need(napi_close_handle_scope(env, scope), "napi_close_handle_scope");
  need(napi_create_object(env, &object), "napi_create_object");
  COUNT(after);
}

NOINLINE napi_value work(napi_env env, napi_info info) {
  napi_value given[2];
  unsigned times, first;
  size_t there = 2;
  need(napi_get_cb_info(env, info, &there, given, 0, 0), "napi_get_cb_info");
  need(napi_get_value_uint32(env, given[0], &times), "a number");
  need(napi_get_value_uint32(env, given[1], &first), "a number");
  __atomic_add_fetch(&threads_left, first ? first : 0, __ATOMIC_SEQ_CST); /* the first thread adds the number of threads */
  if (first) {
    puts("ready");
    fflush(stdout);
  }
  wait_for("go");
  for (unsigned i = 0; i < times; i++) {
    forgets(env);
    scoped(env);
    scoped(env);
    escapes(env);
    after(env);
  }
  made("napi_create_object");
  while (first && again()) {
    forgets(env);
    scoped(env);
    alive();
  }
  return 0;
}

napi_value napi_register_module_v1(napi_env env, napi_value exports) {
  napi_value function;
  (void)exports;
  need(napi_create_function(env, "work", (size_t)-1, work, 0, &function), "napi_create_function");
  return function;
}
