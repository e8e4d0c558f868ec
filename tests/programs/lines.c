/* Counts the lines of Python that a thread runs: a trace function for PyEval_SetTrace. One written in Python, for sys.settrace, takes ten
 * times as long, as the frame's variables are put into a dictionary for each line. No header of Python's is needed: what is used is the
 * same in all versions. */
#include <stdint.h>

enum { LINE = 2 }; /* PyTrace_LINE, Include/cpython/pystate.h */

extern void *PyExc_RuntimeError;
void PyErr_SetString(void *type, const char *message);
int count(void *self, void *frame, int what, void *argument);

uint64_t lines, most;

int count(void *self, void *frame, int what, void *argument) {
    (void)self, (void)frame, (void)argument;
    if (what != LINE || lines++ != most) /* only once, because the code that handles the error also has lines */
        return 0;
    PyErr_SetString(PyExc_RuntimeError, "more lines ran than the test allows");
    return -1;
}
