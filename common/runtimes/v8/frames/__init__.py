"""Name the frames of JavaScript functions, and unwind code that V8 generated."""
