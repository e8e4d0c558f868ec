/* A Node-API addon. probe(size) calls the C function `probed`. callBack(function) calls a JavaScript function from C. probeForged()
 * replaces the function pointers in the JavaScript frames by pointers to unmapped memory while it calls `probed`, and returns the number
 * of these frames. */
#include "native_calls.c"
#include <stdint.h>
typedef struct napi_env__ *napi_env; typedef struct napi_value__ *napi_value; typedef struct napi_info__ *napi_info;
typedef napi_value (*napi_callback)(napi_env, napi_info);
extern int napi_create_function(napi_env, const char *, size_t, napi_callback, void *, napi_value *);
extern int napi_set_named_property(napi_env, napi_value, const char *, napi_value);
extern int napi_get_cb_info(napi_env, napi_info, size_t *, napi_value *, napi_value *, void **);
extern int napi_get_value_uint32(napi_env, napi_value, uint32_t *);
extern int napi_get_undefined(napi_env, napi_value *);
extern int napi_call_function(napi_env, napi_value, napi_value, size_t, const napi_value *, napi_value *);
static napi_value probe(napi_env env, napi_info info) {
  size_t count = 1; napi_value argument; uint32_t size = 0;
  napi_get_cb_info(env, info, &count, &argument, 0, 0);
  napi_get_value_uint32(env, argument, &size);
  probed(size);
  return 0;
}
static napi_env called_env; static napi_value called;
static void call(void) {
  napi_value undefined, result;
  napi_get_undefined(called_env, &undefined);
  napi_call_function(called_env, undefined, called, 0, 0, &result);
}
static napi_value call_function(napi_env env, napi_info info) {
  size_t count = 1;
  called_env = env;
  napi_get_cb_info(env, info, &count, &called, 0, 0);
  call_back(call);
  return 0;
}
extern int napi_create_uint32(napi_env, uint32_t, napi_value *);
static int is_object(uintptr_t word) { return (word & 3) == 1 && word >> 32 && !(word >> 47); }
static napi_value probe_forged(napi_env env, napi_info info) {
  enum { WORDS = 600, FRAMES = 64 };
  uintptr_t *words = __builtin_frame_address(0), *forged[FRAMES], before[FRAMES];
  napi_value found;
  uint32_t frames = 0;
  (void)info;
  for (int at = 4; at < WORDS && frames < FRAMES; at++) /* a frame: function, context, the caller's frame pointer, the return address */
    if (words[at] > (uintptr_t)(words + at) && words[at] < (uintptr_t)(words + 2 * WORDS) && is_object(words[at - 1]) && is_object(words[at - 2]))
      forged[frames++] = words + at - 2;
  for (uint32_t at = 0; at < frames; at++) before[at] = *forged[at], *forged[at] = 0x123456789001 + 0x1000 * at;
  probed(1000);
  for (uint32_t at = 0; at < frames; at++) *forged[at] = before[at];
  napi_create_uint32(env, frames, &found);
  return found;
}
static void add(napi_env env, napi_value exports, const char *name, napi_callback function) {
  napi_value made; napi_create_function(env, name, (size_t)-1, function, 0, &made);
  napi_set_named_property(env, exports, name, made);
}
__attribute__((visibility("default"))) napi_value napi_register_module_v1(napi_env env, napi_value exports) {
  add(env, exports, "probe", probe); add(env, exports, "callBack", call_function);
  add(env, exports, "probeForged", probe_forged); return exports;
}
