// A library for LD_PRELOAD in PostgreSQL. The file `contexts` in the data directory contains a process identifier and PostgreSQL's major
// version. Before the backend with this identifier waits for its next statement, it creates memory contexts of the types Slab, Generation
// and Bump (since PostgreSQL 17). It allocates 150 chunks of 200 bytes in each context, and frees some of them, except in Bump. Some blocks
// of the Slab context become completely free. For version 13, the backend also prints its contexts to standard error, because that version
// has no other way to print them. At the end, the backend removes the file. The test does not call these functions with GDB, because GDB 13
// cannot call functions on processors with AMX.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { CHUNK = 200, CHUNKS = 150 };

static void *symbol(const char *name)
{
    return dlsym(RTLD_DEFAULT, name);
}

static void fill(void *context, int frees)
{
    void *(*alloc)(void *, size_t) = symbol("MemoryContextAlloc");
    void (*release)(void *) = symbol("pfree");
    void *chunks[CHUNKS];
    for (int i = 0; i < CHUNKS; i++)
        chunks[i] = alloc(context, CHUNK);
    for (int i = 0; frees && i < CHUNKS; i++)
        if (i >= CHUNKS / 2 || i % 3 == 0)
            release(chunks[i]);
}

static void create_contexts(int major)
{
    void *top = *(void **)symbol("TopMemoryContext");
    void *(*slab)(void *, const char *, size_t, size_t) = symbol("SlabContextCreate");
    void *(*generation)(void *, const char *, size_t, size_t, size_t) = symbol("GenerationContextCreate");
    void *(*bump)(void *, const char *, size_t, size_t, size_t) = symbol("BumpContextCreate");
    fill(slab(top, "Slab test", 8192, CHUNK), 1);
    // Before PostgreSQL 15, a Generation context has blocks of one size only.
    fill(generation(top, "Generation test", major > 14 ? 0 : 8192, 8192, 65536), 1);
    if (bump)
        fill(bump(top, "Bump test", 0, 8192, 65536), 0);
    if (major == 13)
        ((void (*)(void *))symbol("MemoryContextStats"))(top);
}

int epoll_wait(int fd, struct epoll_event *events, int most, int timeout)
{
    static int (*wait)(int, struct epoll_event *, int, int);
    if (!wait)
        wait = dlsym(RTLD_NEXT, "epoll_wait");
    FILE *file = fopen("contexts", "r"); // the working directory is the data directory
    int pid = 0, major = 0;
    if (file) {
        if (fscanf(file, "%d %d", &pid, &major) != 2)
            pid = 0;
        fclose(file);
    }
    if (pid == getpid()) {
        create_contexts(major);
        remove("contexts");
    }
    return wait(fd, events, most, timeout);
}
