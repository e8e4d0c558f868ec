"""Pictures of heaps: in a terminal, as HTML, SVG, PNG; names, colours, cells are in cells.py."""
