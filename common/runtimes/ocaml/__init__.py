"""Name what refers to the objects of OCaml, whose heap is not listed."""
