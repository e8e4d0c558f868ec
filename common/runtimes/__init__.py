"""Managed runtimes in a process, read from their own structures; layouts come from the runtime's
code.
"""
