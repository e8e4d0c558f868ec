"""Write blocks as a Parquet file with pyarrow: one row per block."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Optional

from findleaks.audit.block_batches import Batch, BlockNames
from findleaks.errors import FindleaksError
from findleaks.escaping import visible
from findleaks.report.block_files import Texts, visible_or_none
from findleaks.report.files import replacing

ROWS = 1 << 18
"""Fewest rows of a row group. Readers load one group at a time."""


def require_pyarrow() -> None:
    """Raise FindleaksError if pyarrow is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise FindleaksError(f"-o FILE.parquet needs pyarrow ({error}); pip install 'findleaks[parquet]', or write FILE.csv") from None


def write_parquet(path: str, batches: Iterable[Batch], names: Mapping[int, BlockNames], about: Mapping[str, str]) -> None:
    """Write columns as in the JSON of `blocks`, with addresses as integers (uint64). Unknown values
    are null; names are dictionary-encoded. `about` is stored in the metadata of the file."""
    import pyarrow
    import pyarrow.parquet as parquet

    text, number = pyarrow.string(), pyarrow.uint64()
    fields = [("address", number), ("size", number), *((name, text) for name in ("state", "kind", "allocator", "arena"))]
    known = ("type", text), ("hint", text), ("type_from", text), ("type_sure", pyarrow.bool_())
    schema = pyarrow.schema([*fields, ("site", pyarrow.uint32()), *known])
    schema = schema.with_metadata({key: visible(value) for key, value in about.items()})
    texts = Texts(visible_or_none)
    with replacing(path) as part, parquet.ParquetWriter(part, schema) as writer:
        for group in _groups(_record_batch(pyarrow, schema, batch, names, texts) for batch in batches):
            writer.write_table(pyarrow.Table.from_batches(group, schema))


def _groups(batches: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield groups of record batches with at least ROWS rows; the last group may have fewer."""
    group: list[Any] = []
    rows = 0
    for batch in batches:
        group.append(batch)
        rows += batch.num_rows
        if rows >= ROWS:
            yield group
            group, rows = [], 0
    if group:
        yield group


def _record_batch(pyarrow: Any, schema: Any, batch: Batch, names: Mapping[int, BlockNames], texts: Texts[Optional[str]]) -> Any:
    """Convert a batch to Arrow. Names are looked up once per number, not per row."""
    count, text, word = len(batch.addresses), pyarrow.string(), pyarrow.uint64()

    def column(values: array[int]) -> Any:
        return pyarrow.Array.from_buffers(word, count, [None, pyarrow.py_buffer(values)])

    encoded = column(batch.names).dictionary_encode()
    known = [names[number] for number in encoded.dictionary.to_pylist()]
    made = {"address": column(batch.addresses), "size": column(batch.sizes)}
    truth: dict[str, Optional[bool]] = {"true": True, "false": False, "": None}
    made["type_sure"] = pyarrow.array([truth[one.type_sure] for one in known], pyarrow.bool_()).take(encoded.indices)
    for name in BlockNames._fields[:-1]:
        blank = None if name in ("kind", "type", "type_from") else ""  # as in JSON
        made[name] = pyarrow.array([visible(getattr(one, name)) or blank for one in known], text).take(encoded.indices)
    site = pyarrow.uint32()
    made["site"] = pyarrow.array([one or None for one in batch.sites], site) if batch.sites else pyarrow.nulls(count, site)
    made["hint"] = pyarrow.array(list(texts.of(batch.hints)), text) if batch.hints else pyarrow.nulls(count, text)
    return pyarrow.RecordBatch.from_arrays([made[field.name] for field in schema], schema=schema)
