"""Stacks without a debugger: call frame information where a module has it, the chain of frame pointers where it has none (code
made at run time)."""
