"""Layouts of PartitionAlloc on 64-bit little-endian Linux with pages of 4 KiB.

Sources, in base/allocator/partition_allocator/src/partition_alloc of Chromium 121 to 153:
partition_alloc_constants.h (super pages), partition_page.h (SlotSpanMetadata,
PartitionPageMetadata), partition_bucket.h (PartitionBucket), partition_superpage_extent_entry.h,
partition_direct_map_extent.h, partition_root.h (PartitionRoot), pool_offset_freelist.h and
encoded_next_freelist.h (links), in_slot_metadata.h (reference counters), thread_cache.h
(ThreadCache). The bucket of Chromium 156 was measured in its processes."""

from __future__ import annotations

from typing import NamedTuple, Optional

SUPER_PAGE = 2 << 20  # kSuperPageSize; super pages are aligned to their size
PARTITION_PAGE = 16 << 10  # PartitionPageSize; the first and the last of a super page have no slots
PAGE = 4096  # SystemPageSize
ENTRY = 32
"""kPageMetadataSize: bytes of metadata for each partition page. The entry of the first partition
page of a super page is the extent {root, next extent, number of super pages 2 …}."""
ENTRIES = SUPER_PAGE // PARTITION_PAGE
METADATA = ENTRIES * ENTRY  # bytes of a super page's metadata: one page
SPAN_FORMAT = "<QQQIHBB"
"""An entry of a slot span: first free slot, next span in the list, bucket, bits (see `Bits`),
further bits that are not read, place, unused. If a span has only one slot, the entry of its second
partition page begins with the raw size of this slot."""
PLACE, VALID = 0x3F, 0x40
"""Bits of `place`. PLACE: the number of partition pages from the start of the span to this page.
VALID: the page belongs to a span."""

POOL_ALIGNMENT = 1 << 30  # kConfigurablePoolMinSize; a pool is aligned to its size
POOL_SIZE = 16 << 30  # kPoolMaxSize: bytes of a pool whose size is not in memory
MOST_SUPER_PAGES = 1 << 13  # in a pool (kMaxSuperPagesInPool)
MOST_DIRECT_MAPS = 1 << 16
MOST_ROOTS = 64  # partitions of a process; Chromium has fewer than ten

TABLE = 2 * PAGE
"""Offset of InSlotMetadataTable in a super page. The table has the reference counters of slots that
begin at the start of a page. The counter of any other slot is in the last bytes of that slot."""
TABLE_STRIDE = 8  # bytes of the table for each page of the super page
COUNTER = 4  # bytes of InSlotMetadata
HELD = 1  # kMemoryHeldByAllocatorBit: the program has not freed the slot
REFERENCES = 0x3FFFFFFE  # kPtrCountMask: how many raw_ptr refer to the slot
MOST_EXTRAS = 64  # bytes; more than any build adds to a request

SMALLEST, LARGEST = 16, 983_040  # bytes of a slot (kMinBucketSize, kMaxBucketSize)


class Bits(NamedTuple):
    """The unpacked state of a slot span: the number of allocated slots, the number of slots that
    were never used, and whether the next entry has the size of the span's only slot."""

    allocated: int
    unprovisioned: int
    has_raw_size: bool


class Bucket(NamedTuple):
    """A layout of PartitionBucket. `stride` is its size in bytes. `pages` is the offset of the
    member that has the number of pages of a span. The offsets of the lists of active, empty and
    decommitted spans, and of the slot size, are the same in all versions."""

    stride: int
    pages: int


BUCKETS = (Bucket(56, 32), Bucket(48, 28), Bucket(40, 28))  # Chromium 156, 127 to 153, older
SLOT_SIZE = 24  # offset of PartitionBucket::slot_size

WIDE, NARROW = 15, 13
"""kMaxSlotsPerSlotSpanBits: the number of bits of a count of slots in an entry. WIDE: since
Chromium 128. NARROW: in older versions."""


def unpack_bits(word: int, width: int) -> Bits:
    """Unpack the 32-bit word of an entry. The counts have `width` bits, WIDE or NARROW. The bit
    marked_full precedes NARROW counts, and follows WIDE counts."""
    if width == WIDE:
        return Bits(word & 0x7FFF, word >> 15 & 0x7FFF, bool(word >> 31))
    return Bits(word >> 1 & 0x1FFF, word >> 14 & 0x1FFF, bool(word >> 27 & 1))


# Words of PartitionRoot relative to current_extent_.
NEXT_SUPER_PAGE = -3
FIRST_EXTENT, DIRECT_MAPS = 1, 2
COUNTERS = (
    "total_size_of_committed_pages",
    "max_size_of_committed_pages",
    "total_size_of_super_pages",
    "total_size_of_direct_mapped_pages",
    "total_size_of_allocated_bytes",
    "max_size_of_allocated_bytes",
    "syscall_count",
    "syscall_total_time_ns",
)
"""The counters after PartitionRoot::initialized_. All except the last two are in bytes."""
BRP_COUNTERS = (
    "total_size_of_brp_quarantined_bytes",
    "total_count_of_brp_quarantined_slots",
    "cumulative_size_of_brp_quarantined_bytes",
    "cumulative_count_of_brp_quarantined_slots",
)
"""Further counters, in builds with BackupRefPtr."""
AFTER_COUNTERS = 5
"""Number of words between the counters and current_extent_: the bytes in empty spans, a shift, the
next super page, the next partition page, and the end of the extent."""

ROOT_BYTES = 0x8000  # more than PartitionRoot has up to its member inverted_self_
ROOT_ALIGNMENT = 64
MOST_SETTINGS = 0x200  # bytes of PartitionRoot before its buckets
NO_KEY = 0xFFFFFFFF  # ThreadIsolationOption::pkey without a key; extras_size follows
AFTER_KEY = 12  # the most bytes between the key and the end of extras_size


def find_extras(settings: bytes) -> Optional[int]:
    """Return the number of bytes that PartitionAlloc adds to each request (extras_size). It follows
    a key (NO_KEY) in `settings`, the bytes before the buckets. Return None if there is no key."""
    numbers = memoryview(settings).cast("I").tolist()
    at = next((at for at in range(len(numbers) - 1, -1, -1) if numbers[at] == NO_KEY), None)
    if at is None:
        return None
    after = (number for number in numbers[at + 1 : at + 1 + AFTER_KEY // 4] if number)
    found = next(after, 0)
    return found if found <= MOST_EXTRAS else 0


# ThreadCache: {bytes in the cache 4, should_purge_, statistics, buckets_, root_, thread_id_, next_,
# prev_}. In Chromium 131 and newer, prev_ is followed by {root, address of the cache}, and then by
# the quarantine. The number of bytes before the buckets depends on the version and on the build.
CACHE_BUCKET = 16  # bytes of ThreadCache::Bucket {first slot 8, count 1, limit 1, slot size 2}
LARGEST_CACHED = 1 << 15  # kThreadCacheLargeSizeThreshold: slot size of the last bucket
MOST_CACHED_SLOTS = 255  # of a bucket
MOST_CACHED_SIZES = 128  # more than kBucketCount
CACHE_ROOT_WORDS = 4  # root_, thread_id_, next_, prev_
CACHE_SLOT = (1 << 10, 16 << 10)  # bytes of the slots that a ThreadCache, or four, may be in
MOST_CACHES = 1 << 14
