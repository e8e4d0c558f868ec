"""The hot loops of the analysis: their contract (contract.py), the C engine, and the Python
engine."""
