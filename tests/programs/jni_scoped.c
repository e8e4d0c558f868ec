/* Native code of JniScoped.java that makes local references in its own frames or, in `forgets`, without one. See scoped.h. */
#include <jni.h>

#define PLACES(X) X(forgets, "forgets;work", 1) X(framed, "framed;work", 0) X(nested, "nested;work", 0) X(after, "after;work", 1)
#include "scoped.h"

NOINLINE void forgets(JNIEnv *env, jobject it) {
  (*env)->DeleteLocalRef(env, (*env)->NewLocalRef(env, it)); /* deleted at once, so that the function can be called often */
  COUNT(forgets);
}

NOINLINE void framed(JNIEnv *env, jobject it) {
  (*env)->PushLocalFrame(env, 4);
  (*env)->NewLocalRef(env, it);
  COUNT(framed);
  (*env)->PopLocalFrame(env, 0);
}

NOINLINE void nested(JNIEnv *env, jobject it) {
  (*env)->PushLocalFrame(env, 4);
  (*env)->PushLocalFrame(env, 4);
  (*env)->PopLocalFrame(env, 0);
  (*env)->NewLocalRef(env, it);
  COUNT(nested);
  (*env)->PopLocalFrame(env, 0);
}

/* Its own frame of local references no longer exists when it makes its reference. */
NOINLINE void after(JNIEnv *env, jobject it) {
  (*env)->PushLocalFrame(env, 4);
  (*env)->PopLocalFrame(env, 0);
  (*env)->DeleteLocalRef(env, (*env)->NewLocalRef(env, it));
  COUNT(after);
}

NOINLINE static void work(JNIEnv *env, jobject it, jint times, jint first) {
  __atomic_add_fetch(&threads_left, first, __ATOMIC_SEQ_CST); /* the first thread adds the number of threads */
  if (first) {
    puts("ready");
    fflush(stdout);
  }
  wait_for("go");
  for (jint i = 0; i < times; i++) {
    forgets(env, it);
    framed(env, it);
    framed(env, it);
    nested(env, it);
    after(env, it);
  }
  made("jni_NewLocalRef");
  while (first && again()) {
    forgets(env, it);
    framed(env, it);
    alive();
  }
}

JNIEXPORT void JNICALL Java_JniScoped_work(JNIEnv *env, jclass class, jobject it, jint times, jint first) {
  (void)class;
  work(env, it, times, first);
}
