"""Results to text: sizes, columns, and the words of a line."""
