/* Blocks that only thread-local variables of one thread hold: of the program, and of a library loaded later. Prints their addresses.
 *
 *   cc -shared -fPIC -DLIBRARY thread_local_names.c -o lib.so;  cc thread_local_names.c -o program -pthread -ldl;  program ./lib.so */
#include <stdlib.h>
#ifdef LIBRARY

__thread void *lib_held[8];
static __thread long lib_count;

void *hold(void) {
    lib_count++;
    return lib_held[3] = malloc(70000);
}

#else

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

__thread char *request_buffer;
static __thread void *scratch[4];
static void *(*hold)(void);

static void *run(void *library) {
    request_buffer = malloc(100000);
    scratch[2] = malloc(50000);
    void *held = hold();
    printf("%p %p %p\nready\n", (void *)request_buffer, scratch[2], held);
    fflush(stdout);
    held = NULL;
    pause();
    return library;
}

int main(int count, char **words) {
    void *library = count > 1 ? dlopen(words[1], RTLD_NOW) : NULL;
    pthread_t thread;
    if (!library) return 2;
    *(void **)&hold = dlsym(library, "hold");
    pthread_create(&thread, NULL, run, library);
    pthread_join(thread, NULL);
}
#endif
