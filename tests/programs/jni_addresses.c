/* Native code of JniAddresses.java: allocates its blocks, and prints which of them the program has forgotten. */
#include <jni.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A block of `size` bytes. Its state is written with a system call, so that no buffer contains the address. */
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

/* Writes a word to memory that no collector examines. This also overwrites the block's address in a vector register. */
JNIEXPORT void JNICALL Java_JniAddresses_ready(JNIEnv *env, jclass class) {
  (void)env, (void)class;
  if (write(1, "ready\n", 6) != 6) abort();
}
