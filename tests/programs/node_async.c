/* An addon of Node.js that does not delete what Node-API allocated for its asynchronous work. `task` forgets a task that has ended. The
 * tasks of `wait` do not end. `ended` returns how many tasks have ended. `context` forgets an asynchronous context. */
#include <stddef.h>
#include <stdlib.h>
#include <unistd.h>

typedef void *napi_env, *napi_value, *napi_callback_info, *napi_async_work, *napi_threadsafe_function, *napi_async_context;
typedef napi_value (*napi_callback)(napi_env, napi_callback_info);
extern int napi_create_function(napi_env, const char *, size_t, napi_callback, void *, napi_value *);
extern int napi_set_named_property(napi_env, napi_value, const char *, napi_value);
extern int napi_create_string_utf8(napi_env, const char *, size_t, napi_value *);
extern int napi_create_uint32(napi_env, unsigned, napi_value *);
extern int napi_create_object(napi_env, napi_value *);
extern int napi_create_async_work(napi_env, napi_value, napi_value, void (*)(napi_env, void *), void (*)(napi_env, int, void *), void *,
                                  napi_async_work *);
extern int napi_queue_async_work(napi_env, napi_async_work);
extern int napi_async_init(napi_env, napi_value, napi_value, napi_async_context *);

struct image { char bytes[1000]; };
static unsigned tasks_ended;

static napi_value name(napi_env env, const char *text) {
  napi_value made;
  napi_create_string_utf8(env, text, (size_t)-1, &made);
  return made;
}

static void resize(napi_env env, void *image) {
  (void)env;
  ((struct image *)image)->bytes[0] = 1;
}

static void sleep_long(napi_env env, void *image) {
  (void)env;
  (void)image;
  sleep(3600);
}

static void complete(napi_env env, int status, void *image) {
  (void)env;
  (void)status;
  (void)image;
  tasks_ended++;
}

static void queue(napi_env env, void (*execute)(napi_env, void *)) {
  napi_async_work work;
  napi_create_async_work(env, NULL, name(env, "resize"), execute, complete, calloc(1, sizeof(struct image)), &work);
  napi_queue_async_work(env, work);
}

static napi_value task(napi_env env, napi_callback_info info) {
  (void)info;
  queue(env, resize);
  return NULL;
}

static napi_value ended(napi_env env, napi_callback_info info) {
  napi_value made;
  (void)info;
  napi_create_uint32(env, tasks_ended, &made);
  return made;
}

static napi_value wait(napi_env env, napi_callback_info info) {
  (void)info;
  queue(env, sleep_long);
  return NULL;
}

static napi_value context(napi_env env, napi_callback_info info) {
  napi_async_context made;
  napi_value resource;
  (void)info;
  napi_create_object(env, &resource);
  napi_async_init(env, resource, name(env, "request"), &made);
  return NULL;
}

static void add(napi_env env, napi_value exports, const char *text, napi_callback function) {
  napi_value made;
  napi_create_function(env, text, (size_t)-1, function, NULL, &made);
  napi_set_named_property(env, exports, text, made);
}

napi_value napi_register_module_v1(napi_env env, napi_value exports) {
  add(env, exports, "task", task);
  add(env, exports, "ended", ended);
  add(env, exports, "wait", wait);
  add(env, exports, "context", context);
  return exports;
}
