"""Injected system calls: made by a thread of another process, and clones created by them."""
