"""Frames of Java methods: interpreted, compiled, and native ones, on machines with x86-64."""
