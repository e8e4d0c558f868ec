/* A Node-API addon whose function attach(OBJECT, BYTES, IS_FREED) attaches a structure and a text of BYTES bytes to an object by napi_wrap. They
 * are freed with the object only if IS_FREED is not 0. If BYTES is 0, there is no text, and the structure has no pointer. */
#include <stdlib.h>
#include <string.h>
typedef struct napi_env__ *napi_env; typedef struct napi_value__ *napi_value; typedef struct napi_ref__ *napi_ref; typedef struct napi_info__ *napi_info;
typedef napi_value (*napi_callback)(napi_env, napi_info);
extern int napi_get_cb_info(napi_env, napi_info, size_t *, napi_value *, napi_value *, void **);
extern int napi_get_value_uint32(napi_env, napi_value, unsigned *);
extern int napi_wrap(napi_env, napi_value, void *, void (*)(napi_env, void *, void *), void *, napi_ref *);
extern int napi_create_function(napi_env, const char *, size_t, napi_callback, void *, napi_value *);
extern int napi_set_named_property(napi_env, napi_value, const char *, napi_value);
struct state { char *text; size_t used; long pad; };
static void release(napi_env env, void *data, void *hint) {
  (void)env; (void)hint;
  free(((struct state *)data)->text);
  free(data);
}
static napi_value attach(napi_env env, napi_info info) {
  napi_value args[3];
  size_t count = 3;
  unsigned bytes = 0, is_freed = 0;
  napi_get_cb_info(env, info, &count, args, 0, 0);
  napi_get_value_uint32(env, args[1], &bytes);
  napi_get_value_uint32(env, args[2], &is_freed);
  struct state *made = calloc(1, sizeof *made);
  made->text = bytes ? memset(malloc(bytes), 'w', bytes) : 0;
  made->used = bytes;
  napi_wrap(env, args[0], made, is_freed ? release : 0, 0, 0);
  return 0;
}
napi_value napi_register_module_v1(napi_env env, napi_value exports) {
  napi_value function;
  napi_create_function(env, "attach", (size_t)-1, attach, 0, &function);
  napi_set_named_property(env, exports, "attach", function);
  return exports;
}
