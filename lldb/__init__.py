"""findleaks inside LLDB. LLDB users import findleaks_lldb.py. In this folder's files `import lldb`
imports LLDB's own module."""

if __name__ == "lldb":
    raise ImportError("this is findleaks' folder lldb/, not LLDB's module: run `command script import` on lldb/findleaks_lldb.py instead")
