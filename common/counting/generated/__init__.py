"""Code that tools/assemble_stubs.py generates."""
