"""What grew, as one HTML page: curves by category, and a table to sort and filter."""
