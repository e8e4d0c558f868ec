"""The hot loops: their contract (contract.py), the C engine, and the Python engine."""
