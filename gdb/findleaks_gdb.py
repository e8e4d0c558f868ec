"""findleaks for GDB: `source` this file, in ~/.gdbinit or by hand. Adds `leaks` (`help leaks`)."""


# GDB runs this file in __main__, like the user's Python code. So it must not leave any names there.
def _load(path: str) -> None:
    import os.path
    import runpy

    here = os.path.dirname(os.path.realpath(path))
    parent = os.path.dirname(here)
    # This is the folder in a checkout. If findleaks is installed, the folder is inside the package.
    package = os.path.join(parent, "common")
    bootstrap = os.path.join(package if os.path.isdir(package) else parent, "bootstrap.py")
    runpy.run_path(bootstrap)["install"]()

    from findleaks.gdb.register import GdbFrontEnd

    GdbFrontEnd()


_load(__file__)
del _load
