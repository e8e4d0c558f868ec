"""Answers: results (`findleaks.results`) computed from a session.

Commands parse words, call these functions, and render what they return. Scripts get the same
results through `findleaks.api`. These functions do not depend on commands, options or terminals."""
