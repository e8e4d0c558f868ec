"""The hot loops: their contract (contract.py), a C kernel that meets it, and its Python twin."""
