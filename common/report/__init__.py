"""Output: sizes, columns, and pages that render results."""
