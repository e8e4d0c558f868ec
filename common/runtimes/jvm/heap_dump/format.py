"""Write the file format HPROF 1.0.2, in which JVMs write heap dumps.

A file is a header and a sequence of records: tag, time, length, body. Records with objects and
roots are inside segments, whose length is in the header of the segment. Numbers are big-endian.

Source: OpenJDK 17, src/hotspot/share/services/heapDumper.cpp, which describes the format."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import BinaryIO

HEADER = b"JAVA PROFILE 1.0.2\0"
STRING, LOAD_CLASS, TRACE, SEGMENT, END = 0x01, 0x02, 0x05, 0x1C, 0x2C
CLASS_DUMP = 0x20
UNKNOWN, JNI_GLOBAL, JNI_LOCAL, JAVA_FRAME, STICKY_CLASS, MONITOR, THREAD = 0xFF, 0x01, 0x02, 0x03, 0x05, 0x07, 0x08
NO_FRAME = 0xFFFFFFFF
"""The number of a frame that is unknown."""

_SEGMENT_BYTES = 1 << 20  # bytes of small records that are collected before a segment is written


class HprofFile:
    """Writes records to a file. Small records of segments are collected; `flush` writes them."""

    def __init__(self, out: BinaryIO, milliseconds: int) -> None:
        self._out = out
        self._waiting = bytearray()
        out.write(HEADER + struct.pack(">IQ", 8, milliseconds))

    def record(self, tag: int, body: bytes) -> None:
        """Write a record outside of segments."""
        self._out.write(struct.pack(">BII", tag, 0, len(body)) + body)

    def string(self, identifier: int, text: bytes) -> None:
        """Write a string. Other records refer to it by `identifier`."""
        self.record(STRING, struct.pack(">Q", identifier) + text)

    def load_class(self, number: int, identifier: int, name: int) -> None:
        """Write a class: its serial number, its object, and the text with its name."""
        self.record(LOAD_CLASS, struct.pack(">IQIQ", number, identifier, 1, name))

    def trace(self, number: int, thread: int) -> None:
        """Write a call stack without frames, of a thread (0: none)."""
        self.record(TRACE, struct.pack(">III", number, thread, 0))

    def root(self, tag: int, identifier: int, *numbers: int) -> None:
        """Write a root. Numbers have 32 bits; a JNI reference has an identifier of 64 bits."""
        form = ">BQQ" if tag == JNI_GLOBAL else f">BQ{len(numbers)}I"
        self.add(struct.pack(form, tag, identifier, *numbers))

    def class_dump(
        self,
        identifier: int,
        others: Sequence[int],
        size: int,
        statics: Iterable[tuple[int, int, bytes]],
        fields: Iterable[tuple[int, int]],
    ) -> None:
        """Write a class. `others`: identifiers of the superclass, the class loader, the signers and
        the protection domain. `size`: bytes of the values of an instance. `statics`: (text with the
        name, type, value) of each static field. `fields`: (text with the name, type) of each
        field."""
        values, named = list(statics)[:0xFFFF], list(fields)[:0xFFFF]
        self.add(
            struct.pack(">BQI6QIHH", CLASS_DUMP, identifier, 1, *others, 0, 0, size, 0, len(values))
            + b"".join(struct.pack(">QB", name, kind) + value for name, kind, value in values)
            + struct.pack(">H", len(named))
            + b"".join(struct.pack(">QB", name, kind) for name, kind in named)
        )

    def add(self, data: bytes) -> None:
        """Add whole records to a segment."""
        self._waiting += data
        if len(self._waiting) >= _SEGMENT_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the collected records as a segment."""
        if self._waiting:
            self.segment(memoryview(self._waiting))
            self._waiting = bytearray()

    def segment(self, data: memoryview) -> None:
        """Write whole records as a segment."""
        self.start_segment(len(data))
        self._out.write(data)

    def start_segment(self, length: int) -> None:
        """Begin a segment of `length` bytes; the caller writes them with `write`."""
        self._out.write(struct.pack(">BII", SEGMENT, 0, length))

    def write(self, data: bytes) -> None:
        """Write a part of a segment."""
        self._out.write(data)

    def end(self) -> None:
        """Write the end of the dump."""
        self.flush()
        self.record(END, b"")
