"""findleaks finds the function whose _FORTIFY_SOURCE check failed from the names of frames."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from findleaks.audit.crash.fortified import describe_check, find_failed_check
from findleaks.target.arch import X86_64
from findleaks.unwind.stacks import NamedFrame

TRACER: Any = SimpleNamespace(frames=[], target=SimpleNamespace(arch=X86_64))


def make_frames(module: str, *functions: str) -> list[NamedFrame]:
    return [NamedFrame(0x1000, function, 0, module) for function in functions]


@pytest.mark.parametrize("module", ["libc.so.6", "libc-2.31.so", "static"])
@pytest.mark.parametrize(
    ("functions", "expected"),
    [
        (["abort", "__fortify_fail", "__chk_fail", "__vsprintf_chk", "___sprintf_chk"], "sprintf"),
        (["abort", "__fortify_fail", "__chk_fail", "__read_chk"], "read"),
        (["abort", "__fortify_fail", "__chk_fail"], ""),
        (["abort", "__fortify_fail", "__chk_fail", "__\x1b[31m_chk"], ""),
    ],
)
def test_outermost_function_that_checks(functions: list[str], expected: str, module: str) -> None:
    program = "static" if module == "static" else "program"
    assert find_failed_check(TRACER, [*make_frames(module, *functions), *make_frames(program, "copy", "main")]) == expected


def test_other_libraries_are_not_libc() -> None:
    frames = [*make_frames("libc.so.6", "abort", "__chk_fail"), *make_frames("libcrypto.so.3", "__own_chk")]
    assert find_failed_check(TRACER, [*frames, *make_frames("program", "main")]) == ""


def test_check_of_a_descriptor() -> None:
    frames = [*make_frames("libc.so.6", "__chk_fail", "__fdelt_chk"), *make_frames("program", "main")]
    assert "file descriptor" in describe_check(find_failed_check(TRACER, frames))
