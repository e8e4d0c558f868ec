"""Several moments of one program: what they have in common, and what grew between them."""
