"""findleaks inside GDB. GDB users source findleaks_gdb.py. In this folder's files `import gdb`
imports GDB's own module."""

if __name__ == "gdb":
    raise ImportError("this is findleaks' folder gdb/, not GDB's module: take its parent off sys.path, and source gdb/findleaks_gdb.py")
