/* increment(OBJECT): takes a reference that nothing gives back, as C code does that forgets Py_DECREF. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

static PyObject *increment(PyObject *module, PyObject *object) {
    (void)module;
    Py_INCREF(object);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {{"increment", increment, METH_O, NULL}, {NULL, NULL, 0, NULL}};
static PyModuleDef_Slot slots[] = {
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "python_increment", NULL, 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_python_increment(void) { return PyModuleDef_Init(&definition); }
