"""findleaks for GDB: `source` this file, in ~/.gdbinit or by hand. Adds `leaks` (`help leaks`)."""


# GDB runs this file in __main__, where the user's Python code runs too: leave no names behind.
def _load(path: str) -> None:
    import os.path
    import runpy

    here = os.path.dirname(os.path.realpath(path))
    parent = os.path.dirname(here)
    # In a checkout; installed, this folder is inside the package.
    package = os.path.join(parent, "common")
    bootstrap = os.path.join(package if os.path.isdir(package) else parent, "bootstrap.py")
    runpy.run_path(bootstrap)["install"]()

    from findleaks.gdb.register import GdbFrontEnd

    GdbFrontEnd()


_load(__file__)
del _load
