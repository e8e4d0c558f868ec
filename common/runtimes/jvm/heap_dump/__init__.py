"""Write heap dumps (HPROF 1.0.2) of a Java heap, which Eclipse MAT and VisualVM read."""
