/* A Node-API addon that leaks: keep(OBJECT) creates a reference to the object, and nothing deletes it. */
#include <stdlib.h>
typedef struct napi_env__ *napi_env; typedef struct napi_value__ *napi_value; typedef struct napi_ref__ *napi_ref; typedef struct napi_info__ *napi_info;
typedef napi_value (*napi_callback)(napi_env, napi_info);
extern int napi_get_cb_info(napi_env, napi_info, size_t *, napi_value *, napi_value *, void **);
extern int napi_create_reference(napi_env, napi_value, unsigned, napi_ref *);
extern int napi_create_function(napi_env, const char *, size_t, napi_callback, void *, napi_value *);
extern int napi_set_named_property(napi_env, napi_value, const char *, napi_value);
struct holder { napi_ref ref; struct holder *next; long pad[3]; };
static struct holder *all;
static napi_value keep(napi_env env, napi_info info) {
  size_t count = 1; napi_value args[1];
  napi_get_cb_info(env, info, &count, args, 0, 0);
  struct holder *one = malloc(sizeof *one);
  napi_create_reference(env, args[0], 1, &one->ref);
  one->next = all; all = one;
  return 0;
}
__attribute__((visibility("default"))) napi_value napi_register_module_v1(napi_env env, napi_value exports) {
  napi_value f; napi_create_function(env, "keep", 4, keep, 0, &f);
  napi_set_named_property(env, exports, "keep", f); return exports;
}
