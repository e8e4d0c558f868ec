"""Compute results (`findleaks.results`) from a session.

Commands parse words, call these functions, and print what they return. Scripts get the same results
through `findleaks.api`. These functions do not depend on commands, options or terminals."""
