"""Unwinding without a debugger: call frame information where a module has it, else the chain of
frame pointers (code made at run time)."""
