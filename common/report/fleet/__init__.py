"""A page about many cores: groups of leaks, over time and builds, and each core."""
