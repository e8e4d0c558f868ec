/* An addon of Node.js, of which two copies are loaded. `stale` fills freed blocks with the address of its napi_env. The other functions
 * make what Node-API allocates for an addon, and do not delete it. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

typedef void *napi_env, *napi_value, *napi_callback_info, *napi_async_work, *napi_threadsafe_function, *napi_ref;
typedef napi_value (*napi_callback)(napi_env, napi_callback_info);
extern int napi_add_env_cleanup_hook(napi_env, void (*)(void *), void *);
extern int napi_create_async_work(napi_env, napi_value, napi_value, void (*)(napi_env, void *), void (*)(napi_env, int, void *), void *,
                                  napi_async_work *);
extern int napi_create_external_buffer(napi_env, size_t, void *, void (*)(napi_env, void *, void *), void *, napi_value *);
extern int napi_create_function(napi_env, const char *, size_t, napi_callback, void *, napi_value *);
extern int napi_create_object(napi_env, napi_value *);
extern int napi_create_reference(napi_env, napi_value, unsigned, napi_ref *);
extern int napi_create_string_utf8(napi_env, const char *, size_t, napi_value *);
extern int napi_create_threadsafe_function(napi_env, napi_value, napi_value, napi_value, size_t, size_t, void *,
                                           void (*)(napi_env, void *, void *), void *, void (*)(napi_env, napi_value, void *, void *),
                                           napi_threadsafe_function *);
extern int napi_set_named_property(napi_env, napi_value, const char *, napi_value);
extern int napi_unref_threadsafe_function(napi_env, napi_threadsafe_function);

enum { COUNT = 1000, LARGEST = 400, SIZE = 1000 };

static void execute(napi_env env, void *data) { (void)env, (void)data; }
static void complete(napi_env env, int status, void *data) { (void)env, (void)status, (void)data; }
static void call(napi_env env, napi_value function, void *context, void *data) { (void)env, (void)function, (void)context, (void)data; }
static void release(napi_env env, void *data, void *hint) {
  (void)env, (void)hint;
  free(data);
}
static void clean(void *data) { free(data); }

static napi_value name(napi_env env, const char *text) {
  napi_value made;
  napi_create_string_utf8(env, text, (size_t)-1, &made);
  return made;
}

static napi_value stale(napi_env env, napi_callback_info info) {
  static uintptr_t *blocks[COUNT];
  (void)info;
  for (size_t size = 24; size <= LARGEST; size += 16) {
    for (unsigned at = 0; at < COUNT; at++) {
      blocks[at] = malloc(size);
      for (size_t word = 0; word < size / sizeof(uintptr_t); word++) blocks[at][word] = (uintptr_t)env;
    }
    for (unsigned at = 0; at < COUNT; at++) free(blocks[at]);
  }
  return NULL;
}

static napi_value task(napi_env env, napi_callback_info info) {
  napi_async_work made;
  (void)info;
  napi_create_async_work(env, NULL, name(env, "task"), execute, complete, NULL, &made);
  return NULL;
}

static napi_value function(napi_env env, napi_callback_info info) {
  napi_threadsafe_function made;
  (void)info;
  napi_create_threadsafe_function(env, NULL, NULL, name(env, "function"), 0, 1, NULL, NULL, NULL, call, &made);
  napi_unref_threadsafe_function(env, made);
  return NULL;
}

static napi_value reference(napi_env env, napi_callback_info info) {
  napi_value object;
  napi_ref made;
  (void)info;
  napi_create_object(env, &object);
  napi_create_reference(env, object, 1, &made);
  return NULL;
}

static napi_value buffer(napi_env env, napi_callback_info info) {
  napi_value made;
  (void)info;
  napi_create_external_buffer(env, SIZE, calloc(1, SIZE), release, NULL, &made);
  return made;
}

/* Node frees the memory when it ends. */
static napi_value hook(napi_env env, napi_callback_info info) {
  (void)info;
  napi_add_env_cleanup_hook(env, clean, calloc(1, SIZE));
  return NULL;
}

static void add(napi_env env, napi_value exports, const char *text, napi_callback callback) {
  napi_value made;
  napi_create_function(env, text, (size_t)-1, callback, NULL, &made);
  napi_set_named_property(env, exports, text, made);
}

napi_value napi_register_module_v1(napi_env env, napi_value exports) {
  add(env, exports, "stale", stale);
  add(env, exports, "task", task);
  add(env, exports, "function", function);
  add(env, exports, "reference", reference);
  add(env, exports, "buffer", buffer);
  add(env, exports, "hook", hook);
  return exports;
}
