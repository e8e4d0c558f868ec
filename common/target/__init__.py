"""A process image: regions, bytes, threads, modules, symbols (see `base.Target`)."""
