"""Analyse many cores: a row for each core, and one group for the same leak in many cores."""
