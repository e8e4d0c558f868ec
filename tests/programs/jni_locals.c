/* Native methods of JniLocals.java: they make a local reference to each element of an array. */
#include <jni.h>
#include <unistd.h>

static void refer_to_all(JNIEnv *env, jobjectArray objects) {
  jsize count = (*env)->GetArrayLength(env, objects);
  (*env)->EnsureLocalCapacity(env, count);
  for (jsize i = 0; i < count; i++) (*env)->GetObjectArrayElement(env, objects, i);
}

JNIEXPORT void JNICALL Java_JniLocals_drop(JNIEnv *env, jclass class, jobjectArray objects) {
  (void)class;
  refer_to_all(env, objects);
}

/* The array is cleared, so that only the local references keep its elements alive. */
JNIEXPORT void JNICALL Java_JniLocals_hold(JNIEnv *env, jclass class, jobjectArray objects) {
  (void)class;
  refer_to_all(env, objects);
  jsize count = (*env)->GetArrayLength(env, objects);
  for (jsize i = 0; i < count; i++) (*env)->SetObjectArrayElement(env, objects, i, NULL);
  if (write(1, "ready\n", 6) != 6) return;
  for (;;) pause();
}
