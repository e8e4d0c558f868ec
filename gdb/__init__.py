"""findleaks in GDB: users source findleaks_gdb.py. `import gdb` here imports GDB's module."""

if __name__ == "gdb":
    raise ImportError("this is findleaks' folder gdb/, not GDB's module: remove its parent from sys.path, and source gdb/findleaks_gdb.py")
