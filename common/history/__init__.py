"""Snapshots of a program, and what grew between them."""
