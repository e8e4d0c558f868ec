"""Draw heap maps in a terminal, or as HTML, SVG and PNG. cells.py defines names, colours and
cells."""
