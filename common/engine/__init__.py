"""The hot loops: their contract (contract.py), a C engine that meets it, and its Python twin."""
