"""Heap maps: in a terminal, as HTML, SVG and PNG; cells.py has names, colours and cells."""
