#include <jni.h>
#include <stdlib.h>

enum { MOST = 1 << 12 };

static void *kept[MOST];
static int count;

/* The function whose calls are counted. Its blocks of 48 bytes are lost; of the other blocks, the last ones are kept. */
__attribute__((noinline)) int probed(int bytes) {
    void *block = malloc((size_t)bytes);
    if (bytes != 48) {
        free(kept[count % MOST]);
        kept[count++ % MOST] = block;
    }
    return bytes + (block == NULL);
}

JNIEXPORT jint JNICALL Java_JavaNativeCalls_probe(JNIEnv *env, jclass type, jint bytes) {
    (void)env, (void)type;
    return probed(bytes) + 1;
}

JNIEXPORT jint JNICALL Java_JavaChangingClasses_probe(JNIEnv *env, jclass type, jint bytes) {
    (void)env, (void)type;
    return probed(bytes) + 1;
}
