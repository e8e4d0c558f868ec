/* What the programs beside this file use of CPython's stable ABI (3.9 to 3.14, x86-64), so that no version's headers are needed. */
#ifndef PYMALLOC_API_H
#define PYMALLOC_API_H

#include <stddef.h>
#include <stdint.h>

typedef struct object {
    int64_t count;
    void *type;
} object;

typedef struct {
    const char *name;
    object *(*function)(object *, object *);
    int flags;
    const char *doc;
} method;

typedef struct {
    object base;
    object *(*init)(void);
    int64_t index;
    object *copy;
    const char *name, *doc;
    int64_t size;
    method *methods;
    void *slots, *traverse, *clear, *free;
} module_definition;

#define TAKES_NOTHING 4 /* METH_NOARGS */
#define ABI 3           /* PYTHON_ABI_VERSION */

void *PyObject_Malloc(size_t);
void *PyMem_Malloc(size_t);
void PyObject_Free(void *);
void PyMem_Free(void *);
object *PyBytes_FromStringAndSize(const char *, int64_t);
object *PyTuple_New(int64_t);
void PyObject_GC_UnTrack(void *);
object *PyModule_Create2(module_definition *, int);
object *PyLong_FromLong(long);

#endif
