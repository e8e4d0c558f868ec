"""Stack unwinding without a debugger: by call frame information, or else by the chain of frame
pointers."""
