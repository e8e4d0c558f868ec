/* A Node-API addon whose functions give blocks of malloc's to JavaScript: external(SIZE, KEPT) in an External without a finalizer,
 * number(SIZE, KEPT) as a BigInt. What becomes of each block is printed straight to the kernel, so that no buffer keeps it; ready() says that
 * it is over.
 *
 * Declared here as js_native_api.h of Node-API version 6 has it, so that no headers are needed; node itself exports the functions. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct napi_env__ *napi_env;
typedef struct napi_value__ *napi_value;
typedef struct napi_info__ *napi_info;
typedef napi_value (*napi_callback)(napi_env, napi_info);
typedef void (*napi_finalize)(napi_env, void *, void *);
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
extern int napi_create_external(napi_env, void *, napi_finalize, void *, napi_value *);
extern int napi_create_bigint_uint64(napi_env, uint64_t, napi_value *);
extern int napi_create_function(napi_env, const char *, size_t, napi_callback, void *, napi_value *);
extern int napi_set_named_property(napi_env, napi_value, const char *, napi_value);

static void need(int status) {
  if (status) abort();
}

static void *block(napi_env env, napi_info info) {
  napi_value given[2];
  unsigned words[2];
  char line[80];
  size_t count = 2;
  need(napi_get_cb_info(env, info, &count, given, 0, 0));
  for (int i = 0; i < 2; i++) need(napi_get_value_uint32(env, given[i], &words[i]));
  void *made = calloc(1, words[0]);
  int length = snprintf(line, sizeof line, "%s %p\n", words[1] ? "kept" : "forgotten", made);
  if (!made || write(1, line, length) != length) abort();
  return made;
}

static napi_value external(napi_env env, napi_info info) {
  napi_value made;
  need(napi_create_external(env, block(env, info), 0, 0, &made));
  return made;
}

static napi_value number(napi_env env, napi_info info) {
  napi_value made;
  need(napi_create_bigint_uint64(env, (uintptr_t)block(env, info), &made));
  return made;
}

static napi_value ready(napi_env env, napi_info info) {
  (void)env, (void)info;
  if (write(1, "ready\n", 6) != 6) abort();
  return 0;
}

static napi_value begin(napi_env env, napi_value exports) {
  static const struct {
    const char *name;
    napi_callback call;
  } functions[] = {{"external", external}, {"number", number}, {"ready", ready}};
  for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
    napi_value function;
    need(napi_create_function(env, functions[i].name, (size_t)-1, functions[i].call, 0, &function));
    need(napi_set_named_property(env, exports, functions[i].name, function));
  }
  return exports;
}

__attribute__((constructor)) static void enter(void) {
  static napi_module module = {1, 0, __FILE__, begin, "addresses", 0, {0}};
  napi_module_register(&module);
}
