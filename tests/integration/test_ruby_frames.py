"""findleaks lists the frames of Ruby methods that Ruby's backtrace lists, or at random stops, that rb_profile_frames lists."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

import frame_stops
import pytest
import rubies

import findleaks
from findleaks.runtimes.ruby.frame_reader import FrameReader, find_frame_reader
from findleaks.target.base import Target
from findleaks.unwind.frames import FrameRegisters, Unwinder
from findleaks.unwind.managed_frames import DEEPEST, NativeStack

LONG = [pytest.param(version, 200, marks=pytest.mark.matrix) for version in rubies.SUITES]
UNCHOSEN = [pytest.param(version, 200, marks=pytest.mark.matrix) for version in rubies.SUITES if version != "2.7"]
"""Versions whose rb_profile_frames can be called at any instruction. In Ruby 2.7, rb_profile_frames crashes while a frame is pushed."""


@pytest.mark.parametrize(("version", "stops"), [(rubies.SYSTEM, 4), *UNCHOSEN])
def test_frames_are_those_of_the_interpreter(version: str, stops: int, tmp_path: Path) -> None:
    compared = 0
    for _ in range(5):
        with suppress(frame_stops.HandlerCrashed), frame_stops.busy_ruby(version, tmp_path) as program:
            while compared < stops:
                time.sleep(0.01)
                program.stop()
                stack = program.stacks()[program.pid]
                program.resume(program.pid)
                printed = frame_stops.ruby_frames(program.read_until("end\n"))
                read = [(one.file, one.line or 0, one.function or "") for one in frame_stops.select_managed(stack) if one.file]
                assert list(map(frame_stops.as_profile, read)) == list(map(frame_stops.as_profile, printed)), stack
                compared += 1
    assert compared == stops


@pytest.mark.parametrize(("version", "stops"), [(rubies.SYSTEM, 8), *LONG])
def test_frames_are_those_of_caller(version: str, stops: int, tmp_path: Path) -> None:
    """Frames have the labels of blocks, and native frames are in the correct order."""
    sorts = 0
    with frame_stops.busy_ruby(version, tmp_path, stops * 7) as program:
        for _ in range(stops):
            printed = frame_stops.caller_frames(program.read_until("end\n"))
            program.wait_until_stopped()
            stack = program.stacks()[program.pid]
            program.resume()
            read = frame_stops.as_caller(stack, version == "3.4")
            assert [label for _, _, label in read[:2]] == ["kill", "park"], stack
            assert read[2:] == printed, stack
            sorts += frame_stops.is_sorting(stack)
    assert sorts


def test_damaged_frames(tmp_path: Path) -> None:
    """findleaks reads frames in damaged memory without an error, up to the limit."""
    with frame_stops.busy_ruby(rubies.SYSTEM, tmp_path, 7) as program:
        program.read_until("end\n")
        program.wait_until_stopped()
        with findleaks.attach(program.pid) as process:
            target = process._session.target
            stack = unwind(target, program.pid)
            whole = [one.function for part in reader_of(target).segments(stack) for one in part.frames]
            assert len(whole) > 5
            differ = 0
            for seed in range(60):
                reader = reader_of(target)
                reader._memory = reader._sequences._memory = reader._values._memory = frame_stops.DamagedMemory(reader._memory, seed)
                read = [one.function for part in reader.segments(stack) for one in part.frames]
                assert len(read) <= DEEPEST
                differ += read != whole
            assert differ > 10


def reader_of(target: Target) -> FrameReader:
    reader = find_frame_reader(target, [module for module in target.modules() if "ruby" in module.path])
    assert reader is not None
    return reader


def unwind(target: Target, tid: int) -> NativeStack:
    (thread,) = (one for one in target.threads() if one.tid == tid)
    registers: list[FrameRegisters] = []
    return NativeStack(thread, Unwinder(target).trace_with_registers(thread, registers), registers)
