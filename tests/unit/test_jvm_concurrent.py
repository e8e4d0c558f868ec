"""Sizes of the heaps of ZGC and Shenandoah. Contradictory figures are not shown."""

from __future__ import annotations

import pytest
from heaps import session
from jvmimage import COLLECTED, HEAP, HEAP_SIZE, OBJECTS, STATICS, Image

from findleaks.runtimes.base import Part

MIB, VIEW = 1 << 20, 1 << 42
REGION = HEAP_SIZE // 16
GLOBALS, MASKS = OBJECTS + 0x2000, OBJECTS + 0x2100


def shenandoah(size: int = REGION, used: int = 5000, committed: int = HEAP_SIZE, bottom: int = HEAP) -> Image:
    image = Image("Z", ())
    fields = {"_num_regions": 0x80, "_regions": 0x88, "_committed": 0x90, "_used": 0x98}
    image.fields.update({("ShenandoahHeap", name): at for name, at in fields.items()})
    image.fields["ShenandoahHeapRegion", "_bottom"] = 8
    image.statics["ShenandoahHeapRegion", "RegionSizeBytes"] = 40
    image.words(STATICS + 40, size)
    image.words(COLLECTED + 0x80, 16, OBJECTS + 0x2000, committed, used)
    image.words(OBJECTS + 0x2000, OBJECTS + 0x2100)
    image.words(OBJECTS + 0x2100, 0, bottom)
    return image


def zgc(used: int = 6 * MIB, capacity: int = 8 * MIB, most: int = 64 * MIB, offsets: int = VIEW - 1, good: int = 0) -> Image:
    image = Image("Z", ())
    image.words(COLLECTED + 0x20, 0, 0)  # the heap is reserved elsewhere
    image.fields.update({("ZCollectedHeap", "_heap"): 0x40, ("ZHeap", "_page_allocator"): 0x40})
    image.fields.update({("ZPageAllocator", name): at for name, at in (("_max_capacity", 0), ("_capacity", 8), ("_used", 16))})
    image.statics["ZGlobalsForVMStructs", "_instance_p"] = 48
    image.words(STATICS + 48, GLOBALS)
    names = ("_ZAddressOffsetMask", "_ZAddressGoodMask", "_ZAddressMetadataMask")
    for at, (name, value) in enumerate(zip(names, (offsets, good, 7 << 42 if good else 0))):
        image.fields["ZGlobalsForVMStructs", name] = 8 * at
        image.words(GLOBALS + 8 * at, MASKS + 8 * at)
        image.words(MASKS + 8 * at, value)
    image.words(COLLECTED + 0x80, most, capacity, used)
    return image


def heaps(image: Image, *mapped: int) -> dict[str, Part]:
    """Return the parts of the Java heap, with one MiB mapped at each of these addresses."""
    (runtime,) = session(image.target(mapped), []).runtimes
    return {part.name: part for part in runtime.parts() if part.name.startswith("Java heap")}


def test_shenandoah() -> None:
    (heap,) = heaps(shenandoah()).values()
    assert (heap.used, heap.bytes) == (5000, HEAP_SIZE)
    assert heap.detail == "Shenandoah, 1 MiB of at most 1; all of it is searched"


@pytest.mark.parametrize(
    "image",
    [shenandoah(size=REGION // 2), shenandoah(used=HEAP_SIZE + 1), shenandoah(committed=2 * HEAP_SIZE), shenandoah(bottom=HEAP + 8)],
    ids=["regions", "used", "committed", "bottom"],
)
def test_figures_of_another_collector(image: Image) -> None:
    (heap,) = heaps(image).values()
    assert (heap.used, heap.detail) == (None, "1 MiB reserved")


def test_zgc_with_generations() -> None:
    (heap,) = heaps(zgc(), VIEW).values()
    assert (heap.used, heap.ranges) == (6 * MIB, [(VIEW, VIEW + MIB)])
    assert heap.detail == "ZGC, 8 MiB of at most 64; all of it is searched"


@pytest.mark.parametrize("good", [1, 2, 4])
def test_zgc_without_generations(good: int) -> None:
    """The heap is mapped three times. Only one of the mappings counts as memory."""
    found = heaps(zgc(good=good << 42), VIEW, 2 * VIEW, 4 * VIEW)
    assert found["Java heap"].ranges == [(good * VIEW, good * VIEW + MIB)]
    others = [one * VIEW for one in (1, 2, 4) if one != good]
    assert found["Java heap, mapped again"].ranges == [(start, start + MIB) for start in others]
    assert found["Java heap, mapped again"].used is None


@pytest.mark.parametrize(
    "image", [zgc(used=9 * MIB), zgc(capacity=65 * MIB), zgc(offsets=0), zgc(offsets=VIEW), zgc(offsets=(1 << 60) - 1)]
)
def test_zgc_with_contradictory_figures(image: Image) -> None:
    """The file of the heap is named, without figures."""
    (heap,) = heaps(image, VIEW).values()
    assert (heap.used, heap.bytes, heap.detail) == (None, MIB, "figures not read: all of it is searched")
