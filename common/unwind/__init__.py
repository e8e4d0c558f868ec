"""Stack unwinding without a debugger. It uses call frame information, and if there is none, the
chain of frame pointers."""
