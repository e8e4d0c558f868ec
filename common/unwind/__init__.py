"""Unwinding without a debugger: by call frame information, else by the chain of frame pointers."""
