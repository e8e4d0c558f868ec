"""What managed runtimes keep in a process: read from the runtime's own structures, their layouts from its own code."""
