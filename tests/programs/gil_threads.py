"""Threads of C code and a Python thread call the module gil_scoped.c. $THREADS: the number of all threads."""

import os
import threading

import gil_scoped

threading.Thread(target=gil_scoped.of_python, daemon=True).start()
gil_scoped.run(int(os.environ["THREADS"]))
