"""findleaks in LLDB: users import findleaks_lldb.py. `import lldb` here imports LLDB's module."""

if __name__ == "lldb":
    raise ImportError("this is findleaks' folder lldb/, not LLDB's module: run `command script import` on lldb/findleaks_lldb.py instead")
