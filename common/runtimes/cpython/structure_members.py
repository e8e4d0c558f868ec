"""Name the members of structures that programs use to keep objects: exceptions, tracebacks, partial
functions, context variables, thread-local objects, bound methods.

Sources, CPython 3.9 to 3.14: Include/cpython/pyerrors.h (PyBaseExceptionObject), traceback.h
(PyTracebackObject), classobject.h (PyMethodObject); Modules/_functoolsmodule.c (partialobject);
Include/internal/pycore_context.h (_pycontextvarobject); Modules/_threadmodule.c (localobject).
The members have the same offsets in these versions, with two exceptions: 3.11 inserted __notes__
before the traceback of an exception, and 3.13 removed the key of a thread-local object."""

from __future__ import annotations

_MEMBERS = {
    "traceback": {16: ".tb_next", 24: ".tb_frame"},
    "method": {16: ".__func__", 24: ".__self__"},
    "functools.partial": {16: ".func", 24: ".args", 32: ".keywords"},
    "_contextvars.ContextVar": {16: "var_name", 24: "default value", 32: "cached value"},
    "ContextVar": {16: "var_name", 24: "default value", 32: "cached value"},  # up to 3.10
    "_thread._local": {24: "args", 32: "kw", 48: "values of threads"},
}
"""Members by the name of the type and their offset in bytes."""
_NEW_LOCAL = {16: "args", 24: "kw", 40: "values of threads"}
_EXCEPTION = {16: "__dict__", 24: ".args", 32: ".__traceback__", 40: ".__context__", 48: ".__cause__"}
_NEW_EXCEPTION = {16: "__dict__", 24: ".args", 32: ".__notes__", 40: ".__traceback__", 48: ".__context__", 56: ".__cause__"}


def name_structure_member(type_name: str, is_exception: bool, offset: int, release: tuple[int, int]) -> str:
    """Return the name of the word at an offset in an object of this type; "" if unknown. See
    ObjectNames.name_member for the forms of names."""
    if is_exception:
        return (_EXCEPTION if release < (3, 11) else _NEW_EXCEPTION).get(offset, "")
    if type_name == "_thread._local" and release >= (3, 13):
        return _NEW_LOCAL.get(offset, "")
    return _MEMBERS.get(type_name, {}).get(offset, "")
