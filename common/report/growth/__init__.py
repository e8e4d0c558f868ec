"""Growth over time as one HTML page: curves by category, and a table to sort and filter."""
