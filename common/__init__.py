"""findleaks: where did a native process's memory go, and who holds it?"""

__version__ = "0.1.0"
