"""Ends with a fatal error of Python, which prints its text."""

import ctypes
import sys

if sys.argv[1] == "constant":
    ctypes.pythonapi.Py_FatalError(b"the table of routes is gone")
if sys.argv[1] == "made":
    ctypes.pythonapi.Py_FatalError(ctypes.create_string_buffer(b"made at run time: %d" % 17))
ctypes.CDLL(None).PyThreadState_Get()  # releases the interpreter's lock, which this function needs
