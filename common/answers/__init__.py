"""Answers: results (`findleaks.results`) computed from a session.

Commands parse words and call these functions, then render what they return; scripts get the same
results through `findleaks.api`. No function here knows a command, an option, or a terminal."""
