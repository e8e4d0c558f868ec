"""A profile as a flame graph: one HTML page that loads no other files."""
