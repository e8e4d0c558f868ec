"""Snapshots of a program at several moments, and what grew between them."""
