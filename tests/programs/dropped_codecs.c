/* Native code of DroppedCodecs.java: blocks of malloc, of which each refers to another one. */
#include <jni.h>
#include <stdlib.h>
#include <string.h>

struct codec {
  char *window;
  int level;
};

JNIEXPORT jlong JNICALL Java_DroppedCodecs_make(JNIEnv *env, jclass class) {
  struct codec *made = malloc(sizeof *made);
  (void)env, (void)class;
  if (!made || !(made->window = malloc(20000))) abort();
  memset(made->window, 7, 20000);
  made->level = 3;
  return (jlong)made;
}

JNIEXPORT void JNICALL Java_DroppedCodecs_free(JNIEnv *env, jclass class, jlong handle) {
  (void)env, (void)class;
  free(((struct codec *)handle)->window);
  free((struct codec *)handle);
}
