/* Loads two shared libraries in Go, FILE and FILE, each of which has a Go runtime of its own. Calls Start(COUNT, "first") of one and
 * Start(2 * COUNT, "second") of the other. Prints "ready". */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

typedef void start(long count, const char *kind);

static start *load(const char *file) {
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    void *found = library ? dlsym(library, "Start") : NULL;
    if (!found) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    return (start *)found;
}

int main(int count, char **words) {
    if (count != 4)
        return 1;
    start *first = load(words[1]), *second = load(words[2]);
    first(atol(words[3]), "first");
    second(2 * atol(words[3]), "second");
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}
