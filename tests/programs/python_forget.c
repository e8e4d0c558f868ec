/* A module whose forget(KIND, COUNT) creates COUNT objects through the C API, and does not call Py_DECREF. */
#define Py_LIMITED_API 0x03090000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <string.h>

int PyObject_GetBuffer(PyObject *exporter, void *view, int flags); /* not in the limited API's headers before 3.11 */

static int pointee;
static PyType_Slot slots[] = {{0, NULL}};
static PyType_Spec spec = {"extension.Forgotten", sizeof(PyObject), 0, Py_TPFLAGS_DEFAULT, slots};

static PyObject *pass_on(PyObject *made, PyObject *part) {
    Py_XDECREF(part);
    return made;
}

static PyObject *make_set(PyObject *number) {
    PyObject *set = PySet_New(NULL);
    PySet_Add(set, number);
    return pass_on(set, number);
}

/* A buffer that is not released keeps a reference to its exporter. */
static PyObject *make_buffer(PyObject *exporter) {
    void *view[32];
    if (!PyObject_GetBuffer(exporter, view, 0)) Py_DECREF(exporter);
    return exporter;
}

static PyObject *make(const char *kind, Py_ssize_t number) {
    if (!strcmp(kind, "list")) return Py_BuildValue("[n]", number % 5);
    if (!strcmp(kind, "dict")) return Py_BuildValue("{s:n}", "number", number % 5);
    if (!strcmp(kind, "tuple")) return Py_BuildValue("(nn)", number % 5, number % 7);
    if (!strcmp(kind, "str")) return PyUnicode_FromFormat("forgotten string %zd", number);
    if (!strcmp(kind, "bytes")) return PyBytes_FromFormat("forgotten bytes %zd", number);
    if (!strcmp(kind, "set")) return make_set(PyLong_FromSsize_t(number % 5));
    if (!strcmp(kind, "bytearray")) return make_buffer(PyByteArray_FromStringAndSize("forgotten", 9));
    if (!strcmp(kind, "PyCapsule")) return PyCapsule_New(&pointee, "forgotten", NULL);
    if (!strcmp(kind, "ValueError")) return PyObject_CallFunction(PyExc_ValueError, "n", number % 5);
    if (!strcmp(kind, "type")) return PyType_FromSpec(&spec);
    if (!strcmp(kind, "module")) return PyModule_New("forgotten");
    PyObject *bytes = PyBytes_FromString("seen through a memoryview");
    return pass_on(PyMemoryView_FromObject(bytes), bytes);
}

static PyObject *forget(PyObject *module, PyObject *args) {
    const char *kind;
    Py_ssize_t count;
    (void)module;
    if (!PyArg_ParseTuple(args, "sn", &kind, &count)) return NULL;
    for (Py_ssize_t number = 0; number < count; number++)
        if (!make(kind, number)) return NULL;
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"forget", forget, METH_VARARGS, NULL}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "python_forget", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_python_forget(void) { return PyModule_Create(&definition); }
