"""Formats of profiles, one module each, with `render(profile) -> bytes`."""
