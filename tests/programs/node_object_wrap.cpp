// An addon of Node 20 with a class like node::ObjectWrap, without Node's headers: wrap() returns an object with 3,000 bytes of malloc.
#include <cstdlib>
#include <cstring>

namespace v8 {
class Context;
class FunctionTemplate;
class Isolate;
template <class T> struct Local { T *slot; };
template <class T> struct MaybeLocal { T *slot; };
namespace internal {
class Isolate;
}
namespace api_internal {
unsigned long *GlobalizeReference(internal::Isolate *, unsigned long *);
}
class Object {
 public:
  void SetAlignedPointerInInternalField(int, void *);
};
class ObjectTemplate {
 public:
  static Local<ObjectTemplate> New(Isolate *, Local<FunctionTemplate>);
  void SetInternalFieldCount(int);
  MaybeLocal<Object> NewInstance(Local<Context>);
};
class Isolate {
 public:
  static Isolate *GetCurrent();
  Local<Context> GetCurrentContext();
};
}  // namespace v8

typedef void *napi_env, *napi_value, *napi_callback_info;
typedef napi_value (*napi_callback)(napi_env, napi_callback_info);
extern "C" int napi_create_function(napi_env, const char *, size_t, napi_callback, void *, napi_value *);
extern "C" int napi_set_named_property(napi_env, napi_value, const char *, napi_value);

class Wrap {
 public:
  static unsigned long *make_handle(v8::Isolate *isolate, void *slot) {
    return v8::api_internal::GlobalizeReference(reinterpret_cast<v8::internal::Isolate *>(isolate), static_cast<unsigned long *>(slot));
  }
  virtual ~Wrap() { free(data_); }
  v8::Object *make() {
    v8::Isolate *isolate = v8::Isolate::GetCurrent();
    static v8::ObjectTemplate *shape;
    if (!shape) {
      v8::ObjectTemplate *made = v8::ObjectTemplate::New(isolate, {nullptr}).slot;
      made->SetInternalFieldCount(1);
      shape = reinterpret_cast<v8::ObjectTemplate *>(make_handle(isolate, made));
    }
    v8::Object *object = shape->NewInstance(isolate->GetCurrentContext()).slot;
    object->SetAlignedPointerInInternalField(0, this);
    handle_ = make_handle(isolate, object);
    return object;
  }

 protected:
  int refs_ = 1;
  unsigned long *handle_ = nullptr;
  void *data_ = memset(malloc(3000), 1, 3000);
};

class Session : public Wrap {
  long number_ = 0;
};

static napi_value wrap(napi_env, napi_callback_info) { return (new Session)->make(); }

extern "C" napi_value napi_register_module_v1(napi_env env, napi_value exports) {
  napi_value function;
  napi_create_function(env, "wrap", 4, wrap, nullptr, &function);
  napi_set_named_property(env, exports, "wrap", function);
  return exports;
}
