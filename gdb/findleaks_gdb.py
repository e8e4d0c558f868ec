"""findleaks for GDB: `source` this file, from ~/.gdbinit or by hand. It adds the command `leaks`; `help leaks` says more."""


# GDB runs this in __main__, where its user's own Python lives: leave nothing behind.
def _load(path: str) -> None:
    import os.path
    import runpy

    here = os.path.dirname(os.path.realpath(path))
    parent = os.path.dirname(here)
    package = os.path.join(parent, "common")  # of a checkout; installed, this folder lies in the package
    bootstrap = os.path.join(package if os.path.isdir(package) else parent, "bootstrap.py")
    runpy.run_path(bootstrap)["install"]()

    from findleaks.gdb.register import register

    register()


_load(__file__)
del _load
