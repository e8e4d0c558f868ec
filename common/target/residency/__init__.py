"""Residency: which pages of a process are, or were, in memory."""
