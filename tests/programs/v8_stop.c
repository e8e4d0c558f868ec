/* A Node-API addon: stop() stops the process, fault() accesses address 0x10. */
#include <signal.h>
#include <stddef.h>
typedef struct napi_env__ *napi_env; typedef struct napi_value__ *napi_value; typedef struct napi_info__ *napi_info;
typedef napi_value (*napi_callback)(napi_env, napi_info);
extern int napi_create_function(napi_env, const char *, size_t, napi_callback, void *, napi_value *);
extern int napi_set_named_property(napi_env, napi_value, const char *, napi_value);
static napi_value stop(napi_env env, napi_info info) { (void)env; (void)info; raise(SIGSTOP); return 0; }
static napi_value fault(napi_env env, napi_info info) { (void)env; (void)info; *(volatile int *)0x10 = 1; return 0; }
static void add(napi_env env, napi_value exports, const char *name, napi_callback function) {
  napi_value made; napi_create_function(env, name, (size_t)-1, function, 0, &made);
  napi_set_named_property(env, exports, name, made);
}
__attribute__((visibility("default"))) napi_value napi_register_module_v1(napi_env env, napi_value exports) {
  add(env, exports, "stop", stop); add(env, exports, "fault", fault); return exports;
}
