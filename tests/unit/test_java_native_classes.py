"""Names of Java classes that are like names of types in C++."""

from __future__ import annotations

import pytest

from findleaks.runtimes.jvm import native_classes

CLASSES = ["BloomFilter", "ColumnFamilyOptions", "LRUCache", "ReadOptions", "RocksDB", "RocksIterator", "Statistics", "Transaction"]
CLASSES += ["TransactionDB", "WriteBatch", "WriteBatchWithIndex", "WriteOptions"]


@pytest.mark.parametrize(
    ("native", "expected"),
    [
        ("rocksdb::WriteCommittedTxn", ["Transaction"]),
        ("rocksdb::OptimisticTransaction", ["Transaction"]),
        ("rocksdb::ArenaWrappedDBIter", ["RocksIterator"]),
        ("rocksdb::WriteBatch", ["WriteBatch"]),
        ("rocksdb::WriteBatchWithIndex", ["WriteBatchWithIndex"]),
        ("rocksdb::DBImpl", ["RocksDB", "TransactionDB"]),
        ("rocksdb::StatisticsJni", ["Statistics"]),
        ("rocksdb::FilterPolicy", ["BloomFilter"]),
        ("rocksdb::lru_cache::LRUCache", ["LRUCache"]),
        ("std::vector<rocksdb::WriteOptions>", []),
        ("rocksdb::SkipListFactory", []),
        ("sqlite3_stmt", []),
        ("", []),
    ],
)
def test_names_like_a_native_type(native: str, expected: list[str]) -> None:
    likeness = {name: native_classes._compare_names(f"org.rocksdb.{name}", native) for name in CLASSES}
    best = max(likeness.values())
    assert [name for name in CLASSES if likeness[name] == best != native_classes._UNLIKE] == expected
