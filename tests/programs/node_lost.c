/* An addon of Node.js that loses a block of malloc in each call of `typed` (with the address of a table of the addon), `called` (with that of a
 * function) and `plain`. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef void *napi_env, *napi_value, *napi_callback_info;
typedef napi_value (*napi_callback)(napi_env, napi_callback_info);
extern int napi_create_function(napi_env, const char *, size_t, napi_callback, void *, napi_value *);
extern int napi_set_named_property(napi_env, napi_value, const char *, napi_value);

struct operations {
  void (*release)(void *);
};
struct session {
  const struct operations *operations;
  char text[232];
};
const struct operations session_operations = {free};

static napi_value lose(size_t size, const struct operations *operations) {
  struct session *made = malloc(size);
  memset(made, 0, size);
  made->operations = operations;
  strcpy(made->text, "lost");
  __asm__ volatile("" : : "r"(made) : "memory");
  return NULL;
}

static napi_value typed(napi_env env, napi_callback_info info) {
  (void)env, (void)info;
  return lose(sizeof(struct session), &session_operations);
}

void release_session(void *session) { free(session); }

static napi_value called(napi_env env, napi_callback_info info) {
  (void)env, (void)info;
  return lose(sizeof(struct session), (const struct operations *)(size_t)release_session);
}

static napi_value plain(napi_env env, napi_callback_info info) {
  (void)env, (void)info;
  return lose(sizeof(struct session), NULL);
}

napi_value napi_register_module_v1(napi_env env, napi_value exports) {
  const char *names[] = {"typed", "called", "plain"};
  const napi_callback functions[] = {typed, called, plain};
  for (int at = 0; at < 3; at++) {
    napi_value function;
    napi_create_function(env, names[at], strlen(names[at]), functions[at], NULL, &function);
    napi_set_named_property(env, exports, names[at], function);
  }
  return exports;
}
