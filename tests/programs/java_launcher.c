/* Runs a Java program in a libjvm.so that the dynamic linker of another libc has loaded: the JDK's
 * own launcher starts itself again, without that linker.
 *
 * Usage: java_launcher libjvm.so [option...] -- Main [word...] */
#include <dlfcn.h>
#include <jni.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 32

typedef jint create(JavaVM **, void **, void *);

static void failed(const char *what) {
    fprintf(stderr, "%s failed\n", what);
    exit(1);
}

int main(int count, char **words) {
    void *library = count > 3 ? dlopen(words[1], RTLD_NOW | RTLD_GLOBAL) : NULL;
    create *start = library ? (create *)dlsym(library, "JNI_CreateJavaVM") : NULL;
    JavaVMOption options[MOST];
    JavaVMInitArgs given = {JNI_VERSION_1_8, 0, options, JNI_FALSE};
    int at = 2;
    for (; at < count && strcmp(words[at], "--") && given.nOptions < MOST; at++)
        options[given.nOptions++].optionString = words[at];
    JavaVM *jvm;
    JNIEnv *env;
    if (!start || ++at >= count || start(&jvm, (void **)&env, &given) != JNI_OK)
        failed(library ? "JNI_CreateJavaVM" : dlerror());
    jclass program = (*env)->FindClass(env, words[at++]), text = (*env)->FindClass(env, "java/lang/String");
    jmethodID method = program ? (*env)->GetStaticMethodID(env, program, "main", "([Ljava/lang/String;)V") : NULL;
    if (!method)
        failed("main");
    jobjectArray array = (*env)->NewObjectArray(env, count - at, text, NULL);
    for (int number = 0; at < count; number++, at++)
        (*env)->SetObjectArrayElement(env, array, number, (*env)->NewStringUTF(env, words[at]));
    (*env)->CallStaticVoidMethod(env, program, method, array);
    return (*jvm)->DestroyJavaVM(jvm);
}
