"""The engine whose loops are C (common/kernel), by ctypes."""
