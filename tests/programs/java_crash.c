/* Native code of JavaCrash.java. */
#include <jni.h>

__attribute__((noinline)) static jlong look(const volatile jlong *address) { return *address; }

JNIEXPORT jlong JNICALL Java_JavaCrash_peek(JNIEnv *env, jclass class, jlong address) {
  (void)env, (void)class;
  return look((const volatile jlong *)address) + 1;
}
