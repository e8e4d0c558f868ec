/* An extension whose objects hold native memory, and a type at which a garbage collection can be stopped.
 *
 *   hold(COUNT)  a list of COUNT objects of type Holder, each with a block of malloc's that refers to two more
 *   held()       (blocks, usable bytes) of all that the objects hold
 *   watch(ONE)   a Watcher; it and ONE refer to the same block, which then no type holds alone
 *   arm()        the next collection writes "ready" and stops in the middle, for good
 */
#define Py_LIMITED_API 0x03090000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <malloc.h>
#include <stdlib.h>
#include <unistd.h>

typedef struct node {
    struct node *next[2];
    char text[];
} node;

typedef struct {
    PyObject_HEAD
    node *memory;
    void *more;
} holder;

static size_t blocks, bytes;
static int armed;

static node *taken(size_t size, node *one, node *other) {
    node *made = calloc(1, sizeof *made + size);
    if (!made)
        abort();
    made->next[0] = one;
    made->next[1] = other;
    blocks++;
    bytes += malloc_usable_size(made);
    return made;
}

/* Use up all memory that was in use before: unused ends of the interpreter's objects may contain stale pointers to it. */
static void use_up(void) {
    static void *plugs;
    for (int at = 0; at < 300; at++) { /* also beyond the former end of the heap */
        void **one = calloc(1, 100000);
        if (!one)
            abort();
        *one = plugs;
        plugs = one;
    }
    char *top = sbrk(0);
    for (size_t size = 8192; size >= 128; size -= 16) {
        void **one = calloc(1, size);
        while (one && (char *)one < top) {
            *one = plugs;
            plugs = one;
            one = calloc(1, size);
        }
        free(one);
    }
}

static int traverse(PyObject *self, visitproc visit, void *arg) {
    PyObject *type = (PyObject *)Py_TYPE(self);
    if (armed) {
        armed = 0;
        if (write(1, "ready\n", 6) == 6)
            for (;;)
                pause();
    }
    Py_VISIT(type);
    return 0;
}

static void dealloc(PyObject *self) { (void)self; /* is never called: the objects are kept */ }

static PyType_Slot holder_slots[] = {{Py_tp_dealloc, (void *)dealloc}, {0, NULL}};
static PyType_Spec holder_spec = {"cpython_native.Holder", sizeof(holder), 0, Py_TPFLAGS_DEFAULT, holder_slots};
static PyType_Slot watcher_slots[] = {{Py_tp_dealloc, (void *)dealloc}, {Py_tp_traverse, (void *)traverse}, {0, NULL}};
static PyType_Spec watcher_spec = {"cpython_native.Watcher", sizeof(holder), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, watcher_slots};
static PyObject *holder_type, *watcher_type;

static PyObject *hold(PyObject *module, PyObject *arguments) {
    Py_ssize_t count;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "n", &count))
        return NULL;
    use_up();
    PyObject *list = PyList_New(count);
    for (Py_ssize_t at = 0; list && at < count; at++) {
        holder *one = (holder *)PyType_GenericAlloc((PyTypeObject *)holder_type, 0);
        if (!one)
            return NULL;
        one->memory = taken(1000 + 16 * (size_t)(at % 50), taken(200, NULL, NULL), taken(5000, NULL, NULL));
        PyList_SetItem(list, at, (PyObject *)one);
    }
    return list;
}

static PyObject *watch(PyObject *module, PyObject *one) {
    (void)module;
    holder *made = (holder *)PyType_GenericAlloc((PyTypeObject *)watcher_type, 0);
    if (!made)
        return NULL;
    made->more = ((holder *)one)->more = calloc(1, 777); /* held by objects of both types, so it counts for neither */
    return (PyObject *)made;
}

static PyObject *held(PyObject *module, PyObject *nothing) {
    (void)module;
    (void)nothing;
    return Py_BuildValue("nn", (Py_ssize_t)blocks, (Py_ssize_t)bytes);
}

static PyObject *arm(PyObject *module, PyObject *nothing) {
    (void)module;
    (void)nothing;
    armed = 1;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"hold", hold, METH_VARARGS, NULL},
    {"watch", watch, METH_O, NULL},
    {"held", held, METH_NOARGS, NULL},
    {"arm", arm, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static struct PyModuleDef definition = {.m_base = PyModuleDef_HEAD_INIT, .m_name = "cpython_native", .m_size = -1, .m_methods = methods};

PyMODINIT_FUNC PyInit_cpython_native(void) {
    holder_type = PyType_FromSpec(&holder_spec);
    watcher_type = PyType_FromSpec(&watcher_spec);
    PyObject *module = holder_type && watcher_type ? PyModule_Create(&definition) : NULL;
    if (module && PyModule_AddObject(module, "Watcher", watcher_type))
        return NULL;
    return module;
}
