"""Render profiles as JSON for speedscope: https://www.speedscope.app/file-format-schema.json,
version 1.25 (src/lib/file-format-spec.ts). The file has a profile for each measure. All profiles
use the same list of frames."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from findleaks import __version__
from findleaks.escaping import json_line
from findleaks.report.profile import BYTES, Frame, Profile


def render(profile: Profile) -> bytes:
    frames: dict[tuple[str, str], int] = {}
    stacks = [[frames.setdefault(_key(frame), len(frames)) for frame in sample.stack] for sample in profile.samples]
    made = {
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "shared": {"frames": [_frame(*key) for key in frames]},
        "profiles": list(_profiles(profile, stacks)),
        "name": profile.title,
        "activeProfileIndex": profile.main * (1 + profile.compared) + profile.compared,
        "exporter": f"findleaks {__version__}",
    }
    return (json_line(made) + "\n").encode("ascii")


def _key(frame: Frame) -> tuple[str, str]:
    """Return name and file. The line is left out, because the lines of calls would split a function
    into several frames."""
    return frame.name, frame.file or frame.module


def _frame(name: str, file: str) -> dict[str, Any]:
    return {"name": name, "file": file} if file else {"name": name}


def _profiles(profile: Profile, stacks: list[list[int]]) -> Iterator[dict[str, Any]]:
    for at, measure in enumerate(profile.measures):
        columns = {measure.title: [sample.values[at] for sample in profile.samples]}
        if profile.compared:
            columns = {
                f"{measure.title} before": [sample.before[at] for sample in profile.samples],
                f"{measure.title} after": columns[measure.title],
            }
        for name, values in columns.items():
            kept = [(stack, value) for stack, value in zip(stacks, values) if value]
            yield {
                "type": "sampled",
                "name": name,
                "unit": "bytes" if measure.unit == BYTES else "none",
                "startValue": 0,
                "endValue": sum(value for _, value in kept),
                "samples": [stack for stack, _ in kept],
                "weights": [value for _, value in kept],
            }
