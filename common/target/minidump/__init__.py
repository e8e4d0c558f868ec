"""Minidumps of Linux processes, written by Breakpad, Crashpad or LLDB. See target.py."""
