/* A program that embeds CPython and gives it arenas from malloc: pymalloc's blocks then stand inside malloc's.
 *
 *   pymalloc_embedded SCRIPT    (PYTHONHOME names the standard library) */
#include "pymalloc_api.h"
#include <stdio.h>
#include <stdlib.h>

typedef struct {
    void *context;
    void *(*obtain)(void *, size_t);
    void (*release)(void *, void *, size_t);
} arena_allocator; /* Include/cpython/objimpl.h: PyObjectArenaAllocator */

void PyObject_SetArenaAllocator(arena_allocator *);
void Py_Initialize(void);
int PyRun_SimpleStringFlags(const char *, void *);

static unsigned arenas;

static void *obtain(void *context, size_t size) {
    (void)context;
    arenas++;
    return malloc(size);
}

static void release(void *context, void *arena, size_t size) {
    (void)context, (void)size;
    arenas--;
    free(arena);
}

int main(int argc, char **argv) {
    arena_allocator ours = {NULL, obtain, release};
    char *text = calloc(1, 1 << 20);
    FILE *file = argc > 1 ? fopen(argv[1], "r") : NULL;
    if (!file || !text || !fread(text, 1, (1 << 20) - 1, file)) return 2;
    fclose(file);
    PyObject_SetArenaAllocator(&ours);
    Py_Initialize();
    return PyRun_SimpleStringFlags(text, NULL) ? 1 : 0;
}
