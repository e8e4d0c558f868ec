"""Profiles as files, a module for each format; each has `render(profile) -> bytes`."""
