/* A Node-API addon whose functions make handles, and stop inside: objects(N), scopes(N, DEPTH), references(N).
 *
 * The declarations are copied from js_native_api.h of Node-API version 1, so no headers are needed. Node itself exports the functions. */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct napi_env__ *napi_env;
typedef struct napi_value__ *napi_value;
typedef struct napi_scope__ *napi_scope;
typedef struct napi_info__ *napi_info;
typedef struct napi_ref__ *napi_ref;
typedef napi_value (*napi_callback)(napi_env, napi_info);
typedef struct {
  int version;
  unsigned flags;
  const char *file;
  napi_value (*begin)(napi_env, napi_value);
  const char *name;
  void *data;
  void *reserved[4];
} napi_module;

extern void napi_module_register(napi_module *);
extern int napi_get_cb_info(napi_env, napi_info, size_t *, napi_value *, napi_value *, void **);
extern int napi_get_value_uint32(napi_env, napi_value, unsigned *);
extern int napi_create_object(napi_env, napi_value *);
extern int napi_create_function(napi_env, const char *, size_t, napi_callback, void *, napi_value *);
extern int napi_set_named_property(napi_env, napi_value, const char *, napi_value);
extern int napi_open_handle_scope(napi_env, napi_scope *);
extern int napi_close_handle_scope(napi_env, napi_scope);
extern int napi_create_reference(napi_env, napi_value, unsigned, napi_ref *);

static void need(int status, const char *what) {
  if (status) {
    fprintf(stderr, "%s: status %d\n", what, status);
    exit(1);
  }
}

static void numbers(napi_env env, napi_info info, unsigned *wanted, size_t count) {
  napi_value given[2];
  size_t there = count;
  need(napi_get_cb_info(env, info, &there, given, 0, 0), "napi_get_cb_info");
  for (size_t i = 0; i < count; i++) need(i < there ? napi_get_value_uint32(env, given[i], &wanted[i]) : 1, "a number");
}

static void make(napi_env env, unsigned count) {
  napi_value made;
  for (unsigned i = 0; i < count; i++) need(napi_create_object(env, &made), "napi_create_object");
}

__attribute__((noinline)) static void stop(void) {
  if (write(1, "ready\n", 6) == 6)
    for (;;) pause();
}

/* Makes N objects in the scope that Node opened for the callback. */
static napi_value objects(napi_env env, napi_info info) {
  unsigned count;
  numbers(env, info, &count, 1);
  make(env, count);
  stop();
  return 0;
}

/* Opens DEPTH nested scopes, and makes N objects in each. */
static napi_value scopes(napi_env env, napi_info info) {
  unsigned wanted[2];
  napi_scope opened;
  numbers(env, info, wanted, 2);
  for (unsigned i = 0; i < wanted[1]; i++) {
    need(napi_open_handle_scope(env, &opened), "napi_open_handle_scope");
    printf("scope %p\n", (void *)opened);
    make(env, wanted[0]);
  }
  fflush(stdout);
  stop();
  return 0;
}

/* Makes N references. They are persistent handles. */
static napi_value references(napi_env env, napi_info info) {
  unsigned count;
  numbers(env, info, &count, 1);
  for (unsigned i = 0; i < count; i++) {
    napi_scope scope;
    napi_value made;
    napi_ref held;
    need(napi_open_handle_scope(env, &scope), "napi_open_handle_scope");
    need(napi_create_object(env, &made), "napi_create_object");
    need(napi_create_reference(env, made, 1, &held), "napi_create_reference");
    need(napi_close_handle_scope(env, scope), "napi_close_handle_scope");
  }
  stop();
  return 0;
}

static napi_value begin(napi_env env, napi_value exports) {
  static const struct {
    const char *name;
    napi_callback call;
  } functions[] = {{"objects", objects}, {"scopes", scopes}, {"references", references}};
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
    napi_value function;
    need(napi_create_function(env, functions[i].name, (size_t)-1, functions[i].call, 0, &function), "napi_create_function");
    need(napi_set_named_property(env, exports, functions[i].name, function), "napi_set_named_property");
  }
  return exports;
}

__attribute__((constructor)) static void enter(void) {
  static napi_module module = {1, 0, __FILE__, begin, "objects", 0, {0}};
  napi_module_register(&module);
}
