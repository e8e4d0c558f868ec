"""The function of V8's by which it is recognised, and whose code says where its heap is."""

ADJUST = "_ZN2v87Isolate37AdjustAmountOfExternalAllocatedMemoryEl"
"""v8::Isolate::AdjustAmountOfExternalAllocatedMemory(long)."""
