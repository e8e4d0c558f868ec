"""A page of many cores: their leaks in groups, over time and builds, down to one core's row."""
