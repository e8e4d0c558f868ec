"""The engine whose loops are C (common/native), by ctypes."""
