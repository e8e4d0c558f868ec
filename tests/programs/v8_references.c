/* A Node-API addon that leaks: each function creates a reference to its argument, and nothing deletes it. The functions differ in
 * where they keep the reference. `environment` and `isolate` lead to Node's lists of all references, and `newest` refers to the last. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
typedef struct napi_env__ *napi_env; typedef struct napi_value__ *napi_value; typedef struct napi_ref__ *napi_ref; typedef struct napi_info__ *napi_info;
typedef napi_value (*napi_callback)(napi_env, napi_info);
extern int napi_get_cb_info(napi_env, napi_info, size_t *, napi_value *, napi_value *, void **);
extern int napi_create_reference(napi_env, napi_value, unsigned, napi_ref *);
extern int napi_create_function(napi_env, const char *, size_t, napi_callback, void *, napi_value *);
extern int napi_set_named_property(napi_env, napi_value, const char *, napi_value);
extern void *current(void) __asm__("_ZN2v87Isolate10GetCurrentEv");
extern int napi_wrap(napi_env, napi_value, void *, void (*)(napi_env, void *, void *), void *, napi_ref *);
typedef struct napi_function__ *napi_function; /* napi_threadsafe_function */
extern int napi_create_string_utf8(napi_env, const char *, size_t, napi_value *);
extern int napi_create_threadsafe_function(napi_env, napi_value, napi_value, napi_value, size_t, size_t, void *,
                                           void (*)(napi_env, void *, void *), void *, void *, napi_function *);
extern int napi_unref_threadsafe_function(napi_env, napi_function);
extern int napi_create_external(napi_env, void *, void (*)(napi_env, void *, void *), void *, napi_value *);
extern int napi_create_external_buffer(napi_env, size_t, void *, void (*)(napi_env, void *, void *), void *, napi_value *);
enum { MOST = 1 << 15, WRAPPED = 20008 };
struct holder { napi_ref ref; struct holder *next; long pad[3]; };
struct watcher { void **handle; struct watcher *next; long pad[2]; };
struct cache { long hits; napi_ref *items; size_t used; };
static napi_env environment;
static void *isolate;
static napi_ref newest;
static struct holder *all;
static napi_ref table[MOST];
static size_t filled;
static struct cache *cache;
static void **global;
static struct watcher *watchers;
static napi_ref refer(napi_env env, napi_info info) {
  size_t count = 1; napi_value args[1]; napi_ref ref = 0;
  napi_get_cb_info(env, info, &count, args, 0, 0);
  napi_create_reference(env, args[0], 1, &ref);
  return newest = ref;
}
static napi_value keep(napi_env env, napi_info info) {
  struct holder *one = calloc(1, sizeof *one);
  one->ref = refer(env, info);
  one->next = all; all = one;
  return 0;
}
static napi_value keep_in_table(napi_env env, napi_info info) {
  if (filled < MOST) table[filled++] = refer(env, info);
  return 0;
}
static napi_value keep_in_cache(napi_env env, napi_info info) {
  if (!cache) { cache = calloc(1, sizeof *cache); cache->items = calloc(MOST, sizeof *cache->items); }
  if (cache->used < MOST) cache->items[cache->used++] = refer(env, info);
  return 0;
}
/* Create a v8::Global, as C++ addons without Node-API do. V8's function takes the object; before V8 11.8, the object's location. */
static void **globalize(napi_env env, napi_info info) {
  size_t count = 1; napi_value args[1];
  void **(*make)(void *, void *) = dlsym(RTLD_DEFAULT, "_ZN2v812api_internal18GlobalizeReferenceEPNS_8internal7IsolateEm");
  void **(*make_before)(void *, void *) = dlsym(RTLD_DEFAULT, "_ZN2v82V818GlobalizeReferenceEPNS_8internal7IsolateEPm");
  napi_get_cb_info(env, info, &count, args, 0, 0);
  if (!make && !make_before) make_before = dlsym(RTLD_DEFAULT, "_ZN2v812api_internal18GlobalizeReferenceEPNS_8internal7IsolateEPm");
  return make ? make(current(), *(void **)args[0]) : make_before(current(), args[0]);
}
static napi_value keep_global(napi_env env, napi_info info) {
  global = globalize(env, info);
  return 0;
}
static napi_value watch(napi_env env, napi_info info) {
  struct watcher *one = calloc(1, sizeof *one);
  one->handle = globalize(env, info);
  one->next = watchers; watchers = one;
  return 0;
}
/* Create a thread-safe function, which the addon never releases. It does not keep Node running. */
static napi_value listen(napi_env env, napi_info info) {
  size_t count = 1; napi_value args[1], name; napi_function made = 0;
  napi_get_cb_info(env, info, &count, args, 0, 0);
  napi_create_string_utf8(env, "listen", (size_t)-1, &name);
  napi_create_threadsafe_function(env, args[0], 0, name, 0, 1, 0, 0, 0, 0, &made);
  napi_unref_threadsafe_function(env, made);
  return 0;
}
static napi_value forget(napi_env env, napi_info info) {
  refer(env, info);
  return 0;
}
/* Attach a block to the argument, as addons attach their C++ objects. */
static void release(napi_env env, void *data, void *hint) { free(data); }
static napi_value wrap(napi_env env, napi_info info) {
  size_t count = 1; napi_value args[1];
  napi_get_cb_info(env, info, &count, args, 0, 0);
  napi_wrap(env, args[0], memset(malloc(WRAPPED), 'w', WRAPPED), release, 0, 0);
  return 0;
}
/* Return a Buffer whose memory the addon frees, or, with `leak`, does not free. */
static void leak(napi_env env, void *data, void *hint) {}
static napi_value buffer(napi_env env, napi_info info) {
  static int made; napi_value found = 0;
  napi_create_external_buffer(env, WRAPPED, memset(malloc(WRAPPED), 'b', WRAPPED), ++made % 2 ? release : leak, 0, &found);
  return found;
}
/* Return an External of a block. `data` gives it a finalizer, `bare` does not. */
static napi_value data(napi_env env, napi_info info) {
  napi_value found = 0;
  napi_create_external(env, memset(malloc(WRAPPED), 'd', WRAPPED), release, 0, &found);
  return found;
}
static napi_value bare(napi_env env, napi_info info) {
  napi_value found = 0;
  napi_create_external(env, memset(malloc(WRAPPED), 'd', WRAPPED), 0, 0, &found);
  return found;
}
static void export(napi_env env, napi_value exports, const char *name, napi_callback callback) {
  napi_value f; napi_create_function(env, name, (size_t)-1, callback, 0, &f);
  napi_set_named_property(env, exports, name, f);
}
__attribute__((visibility("default"))) napi_value napi_register_module_v1(napi_env env, napi_value exports) {
  environment = env; isolate = current();
  export(env, exports, "keep", keep); export(env, exports, "keepInTable", keep_in_table);
  export(env, exports, "keepInCache", keep_in_cache); export(env, exports, "forget", forget);
  export(env, exports, "keepGlobal", keep_global); export(env, exports, "wrap", wrap);
  export(env, exports, "buffer", buffer); export(env, exports, "watch", watch); export(env, exports, "listen", listen);
  export(env, exports, "data", data); export(env, exports, "bare", bare);
  return exports;
}
