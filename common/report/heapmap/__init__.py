"""Pictures of heaps: in a terminal, as one HTML page, as SVG, as PNG. They share names, colours and
cells (`cells.py`)."""
