"""Minidumps of Linux processes: Breakpad's, Crashpad's and LLDB's. See target.py."""
