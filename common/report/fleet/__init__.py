"""A page of many cores: their leaks in groups, over time and builds, and each core."""
