"""The function that identifies V8, and whose code gives the location of its heap."""

ADJUST = "_ZN2v87Isolate37AdjustAmountOfExternalAllocatedMemoryEl"
"""v8::Isolate::AdjustAmountOfExternalAllocatedMemory(long)."""
