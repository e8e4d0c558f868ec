"""The hot loops: what an engine does (contract.py), the C kernel that does it, and its Python
twin."""
