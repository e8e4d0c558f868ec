/* A module whose `lose` allocates memory in one of the interpreter's domains and forgets it; it returns the address, hidden.
   "7": memory of libc's malloc, which it reports to tracemalloc in that domain. */
#define Py_LIMITED_API 0x03090000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdlib.h>

int PyTraceMalloc_Track(unsigned domain, uintptr_t block, size_t size); /* not in the limited API's headers */

static PyObject *lose(PyObject *module, PyObject *args) {
    const char *domain;
    Py_ssize_t size;
    (void)module;
    if (!PyArg_ParseTuple(args, "sn", &domain, &size)) return NULL;
    size_t bytes = (size_t)size;
    int reported = atoi(domain);
    void *block = reported ? malloc(bytes) : domain[0] == 'r' ? PyMem_Malloc(bytes) : PyObject_Malloc(bytes);
    if (reported) PyTraceMalloc_Track((unsigned)reported, (uintptr_t)block, bytes);
    for (size_t i = 0; block && i < bytes; i++) ((char *)block)[i] = 'x';
    return PyLong_FromSize_t(~(size_t)block);
}

static PyMethodDef methods[] = {{"lose", lose, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "python_lose", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_python_lose(void) { return PyModule_Create(&definition); }
