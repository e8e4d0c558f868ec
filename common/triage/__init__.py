"""Many cores: a row for each, and the same leak in many of them as one group."""
