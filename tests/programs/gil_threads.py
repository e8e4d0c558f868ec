"""Threads of C code and one of Python's own call the module gil_scoped.c; $THREADS says how many there are in all."""

import os
import threading

import gil_scoped

threading.Thread(target=gil_scoped.of_python, daemon=True).start()
gil_scoped.run(int(os.environ["THREADS"]))
