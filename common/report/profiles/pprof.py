"""Render profiles in pprof's format, for `go tool pprof` and many others. A file contains the
message Profile of proto/profile.proto in github.com/google/pprof (as of 2024), compressed with
gzip.

The profile contains names, so readers do not need the programs. If two snapshots are compared, the
values are differences, which are negative if something shrank, as with `pprof -diff_base`."""

from __future__ import annotations

import gzip
from typing import Any

from findleaks.escaping import visible
from findleaks.report.profile import COUNT, Frame, Profile
from findleaks.report.profiles.protobuf_loader import require_protobuf
from findleaks.target.base import Module
from findleaks.target.ranges import region_at

_INT, _UINT, _BOOL = "int64", "uint64", "bool"
_MESSAGES: dict[str, tuple[tuple[str, int, str], ...]] = {
    "ValueType": (("type", 1, _INT), ("unit", 2, _INT)),
    "Sample": (("location_id", 1, "[uint64]"), ("value", 2, "[int64]")),
    "Mapping": (
        ("id", 1, _UINT),
        ("memory_start", 2, _UINT),
        ("memory_limit", 3, _UINT),
        ("file_offset", 4, _UINT),
        ("filename", 5, _INT),
        ("build_id", 6, _INT),
        ("has_functions", 7, _BOOL),
        ("has_filenames", 8, _BOOL),
        ("has_line_numbers", 9, _BOOL),
        ("has_inline_frames", 10, _BOOL),
    ),
    "Line": (("function_id", 1, _UINT), ("line", 2, _INT)),
    "Location": (("id", 1, _UINT), ("mapping_id", 2, _UINT), ("address", 3, _UINT), ("line", 4, "[Line]")),
    "Function": (("id", 1, _UINT), ("name", 2, _INT), ("system_name", 3, _INT), ("filename", 4, _INT), ("start_line", 5, _INT)),
    "Profile": (
        ("sample_type", 1, "[ValueType]"),
        ("sample", 2, "[Sample]"),
        ("mapping", 3, "[Mapping]"),
        ("location", 4, "[Location]"),
        ("function", 5, "[Function]"),
        ("string_table", 6, "[string]"),
        ("time_nanos", 9, _INT),
        ("period_type", 11, "ValueType"),
        ("period", 12, _INT),
        ("comment", 13, "[int64]"),
        ("default_sample_type", 14, _INT),
    ),
}
"""The fields of the messages that are used: name, number, type. [type] is repeated."""


def _message() -> Any:
    """Return the class of the message Profile."""
    descriptor_pb2, descriptor_pool, message_factory = require_protobuf()
    of = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="findleaks/profile.proto", package="perftools.profiles", syntax="proto3")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            word = kind.strip("[]")
            label = of.LABEL_REPEATED if kind != word else of.LABEL_OPTIONAL
            made = message.field.add(name=field, number=number, label=label)
            if word in _MESSAGES:
                made.type, made.type_name = of.TYPE_MESSAGE, f".perftools.profiles.{word}"
            else:
                made.type = getattr(of, f"TYPE_{word.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("perftools.profiles.Profile"))


def render(profile: Profile) -> bytes:
    return gzip.compress(_Writer(profile).message.SerializeToString(), 6, mtime=0)


def _clip_value(value: int) -> int:
    """Limit a figure to the range of int64. Figures from damaged memory may be larger."""
    return max(-(1 << 63), min(value, (1 << 63) - 1))


class _Writer:
    """Fills one message. Strings, functions, locations and mappings are numbered in the order of
    use."""

    def __init__(self, profile: Profile) -> None:
        self.message = _message()()
        self._strings: dict[str, int] = {}
        self._functions: dict[tuple[str, str], int] = {}
        self._locations: dict[tuple[Frame, ...], int] = {}
        self._mappings: dict[str, int] = {}
        self._modules = sorted(profile.modules, key=lambda one: one.start)
        self._string("")
        prefix = "growth_of_" if profile.compared else ""
        for measure in profile.measures:
            self.message.sample_type.add(type=self._string(prefix + measure.name), unit=self._string(measure.unit))
        self.message.default_sample_type = self._string(prefix + profile.measures[profile.main].name)
        self.message.comment.append(self._string(profile.title))
        self.message.comment.extend(map(self._string, profile.notes))
        if profile.time is not None and abs(profile.time) < 1 << 33:
            self.message.time_nanos = int(profile.time * 1e9)
        if profile.rate:
            self.message.period_type.type, self.message.period_type.unit = self._string("space"), self._string("bytes")
            self.message.period = profile.rate
        elif [measure.unit for measure in profile.measures] == [COUNT]:
            # As in Go's own profiles of goroutines: pprof compares only profiles with equal periods
            self.message.period_type.CopyFrom(self.message.sample_type[0])
            self.message.period = 1
        if profile.modules:
            # Readers assume that the first mapping is the program
            self._mapping(profile.modules[0])
        for sample in profile.samples:
            values = [now - was for now, was in zip(sample.values, sample.before)] if profile.compared else sample.values
            if any(values):
                self.message.sample.add(location_id=self._stack(sample.stack), value=map(_clip_value, values))
        self.message.string_table.extend(self._strings)

    def _stack(self, stack: tuple[Frame, ...]) -> list[int]:
        """Return the numbers of locations, innermost first. A frame and the functions inlined in it
        are one location."""
        made, at = [], len(stack)
        while at:
            first = at - 1
            while first and stack[first].inlined:
                first -= 1
            made.append(self._location(stack[first:at]))
            at = first
        return made

    def _location(self, frames: tuple[Frame, ...]) -> int:
        number = self._locations.get(frames)
        if number is None:
            number = self._locations[frames] = len(self._locations) + 1
            address = frames[0].address
            location = self.message.location.add(id=number, address=address, mapping_id=self._mapping_at(address))
            for frame in reversed(frames):
                location.line.add(function_id=self._function(frame), line=_clip_value(frame.line))
        return number

    def _function(self, frame: Frame) -> int:
        key = frame.name, frame.file
        number = self._functions.get(key)
        if number is None:
            number = self._functions[key] = len(self._functions) + 1
            name = self._string(frame.name)
            self.message.function.add(id=number, name=name, system_name=name, filename=self._string(frame.file))
        return number

    def _mapping_at(self, address: int) -> int:
        """Return the number of the mapping of the module at this address; 0 if there is none."""
        module = region_at(self._modules, address) if address else None
        return 0 if module is None else self._mapping(module)

    def _mapping(self, module: Module) -> int:
        number = self._mappings.get(module.path)
        if number is None:
            number = self._mappings[module.path] = len(self._mappings) + 1
            made = self.message.mapping.add(id=number, memory_start=module.start, memory_limit=module.end, has_functions=True)
            made.filename, made.build_id = self._string(module.path), self._string(module.build_id)
            made.has_filenames = made.has_line_numbers = made.has_inline_frames = True
        return number

    def _string(self, text: str) -> int:
        return self._strings.setdefault(visible(text), len(self._strings))
