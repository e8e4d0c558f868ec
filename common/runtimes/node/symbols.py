"""The functions that identify V8, and whose code gives the location of its heap."""

ADJUST = "_ZN2v87Isolate37AdjustAmountOfExternalAllocatedMemoryEl"
"""v8::Isolate::AdjustAmountOfExternalAllocatedMemory(long)."""

SPACES = "_ZN2v87Isolate22GetHeapSpaceStatisticsEPNS_19HeapSpaceStatisticsEm"
"""v8::Isolate::GetHeapSpaceStatistics. Versions up to V8 8.4 have only this one."""
