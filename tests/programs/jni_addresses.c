/* Native code of JniAddresses.java: gives it blocks, and says in which of them the program has forgotten. */
#include <jni.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A block of `size` bytes; the truth of it goes straight to the kernel, so that no buffer keeps it. */
JNIEXPORT jlong JNICALL Java_JniAddresses_make(JNIEnv *env, jclass class, jint size, jboolean kept) {
  char line[80];
  void *block = malloc(size);
  (void)env, (void)class;
  if (!block) abort();
  memset(block, 0, size);
  int length = snprintf(line, sizeof line, "%s %p\n", kept ? "kept" : "forgotten", block);
  if (write(1, line, length) != length) abort();
  return (jlong)block;
}

/* Writes a word where no collector looks; so that what a vector register has of a block is overwritten, too. */
JNIEXPORT void JNICALL Java_JniAddresses_ready(JNIEnv *env, jclass class) {
  (void)env, (void)class;
  if (write(1, "ready\n", 6) != 6) abort();
}
