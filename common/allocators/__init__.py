"""Allocators: memory to blocks. One file or folder each; `directory.FINDERS` lists them."""
