"""Write the rows of triage as a Parquet file with pyarrow. There is one row for each core, which
contains lists of its findings and leaks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from findleaks.errors import FindleaksError
from findleaks.escaping import visible
from findleaks.triage.row import Row, utf8


def require() -> None:
    """Raise FindleaksError if pyarrow is not installed."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError as error:
        raise FindleaksError(
            f"-o FILE.parquet needs pyarrow ({error}): pip install 'findleaks[parquet]'; -o FILE.sqlite needs no package"
        ) from None


def table(rows: Sequence[Row]) -> bytes:
    """Return the rows as a Parquet file. The columns are those of --json. Times are UTC, in
    microseconds. Bytes of names that are not UTF-8 are \\xNN."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    text, count = arrow.string(), arrow.int64()
    leak = arrow.struct(
        [("signature", text), ("what", text), ("hint", text), ("leaks", count), ("blocks", count), ("bytes", count), ("example", text)]
    )
    finding = arrow.struct([("kind", text), ("bytes", count), ("title", text)])
    schema = arrow.schema(
        [
            *((name, text) for name in ("core", "status", "program", "build_id", "signal", "frame")),
            ("time", arrow.timestamp("us", tz="UTC")),
            *((name, count) for name in ("size", "lost_blocks", "lost_bytes")),
            ("findings", arrow.list_(finding)),
            ("signatures", arrow.list_(leak)),
            ("warnings", arrow.list_(text)),
            ("seconds", arrow.float64()),
            ("error", text),
        ]
    )
    made = [_plain({**row.result().to_json(), "time": None if row.time is None else round(row.time * 1e6)}) for row in rows]
    columns = [arrow.array([one[field.name] for one in made], field.type) for field in schema]
    out = arrow.BufferOutputStream()
    parquet.write_table(arrow.Table.from_arrays(columns, schema=schema), out)
    data: bytes = out.getvalue().to_pybytes()
    return data


def _plain(value: Any) -> Any:
    """Return the value with its text escaped. The path of the core is not escaped, because it must
    name the file."""
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {name: utf8(one) if name == "core" else _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list) else value
