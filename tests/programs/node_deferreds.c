/* An addon of Node.js. Its function `request` returns a promise that is never settled. Only the last KEPT deferreds are kept.
 * The promise of `answer` is settled. With OTHER, the addon has the name of a function that makes other global handles. */
#include <stddef.h>

enum { KEPT = 100 };

typedef void *napi_env, *napi_value, *napi_callback_info, *napi_deferred;
typedef napi_value (*napi_callback)(napi_env, napi_callback_info);
extern int napi_create_function(napi_env, const char *, size_t, napi_callback, void *, napi_value *);
extern int napi_set_named_property(napi_env, napi_value, const char *, napi_value);
extern int napi_create_promise(napi_env, napi_deferred *, napi_value *);
extern int napi_create_uint32(napi_env, unsigned, napi_value *);
extern int napi_resolve_deferred(napi_env, napi_deferred, napi_value);

#ifdef OTHER
const char other[] = "_ZN2v812api_internal18GlobalizeReferenceEPNS_8internal7IsolateEm";
#endif

static napi_deferred kept[KEPT];
static unsigned requests;

static napi_value request(napi_env env, napi_callback_info info) {
  napi_value promise;
  (void)info;
  napi_create_promise(env, &kept[requests++ % KEPT], &promise);
  return promise;
}

static napi_value answer(napi_env env, napi_callback_info info) {
  napi_deferred deferred;
  napi_value promise, result;
  (void)info;
  napi_create_promise(env, &deferred, &promise);
  napi_create_uint32(env, requests, &result);
  napi_resolve_deferred(env, deferred, result);
  return promise;
}

napi_value napi_register_module_v1(napi_env env, napi_value exports) {
  napi_value function;
  napi_create_function(env, "request", (size_t)-1, request, NULL, &function);
  napi_set_named_property(env, exports, "request", function);
  napi_create_function(env, "answer", (size_t)-1, answer, NULL, &function);
  napi_set_named_property(env, exports, "answer", function);
  return exports;
}
