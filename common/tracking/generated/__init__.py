"""Code made by tools/assemble_stubs.py."""
