"""Questions asked of the heap."""
