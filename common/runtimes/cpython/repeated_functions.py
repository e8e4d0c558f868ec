"""Report many functions that one `def` or `lambda` created, such as callbacks that nothing removes.

Each execution of a `def` or `lambda` creates a function object. All these objects share one code
object, and each may keep a closure and default arguments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from findleaks.engine.contract import Blocks
from findleaks.engine.terms import Totals
from findleaks.formatting import number, shorten, size
from findleaks.runtimes.cpython.code_objects import CodeObject
from findleaks.runtimes.cpython.engine import SUMS, ObjectTally
from findleaks.runtimes.cpython.frame_reader import find_frame_reader
from findleaks.runtimes.cpython.members import ObjectNames
from findleaks.runtimes.cpython.types import Types
from findleaks.runtimes.finding import Finding
from findleaks.target.base import Target
from findleaks.target.interruptible import interruptible
from findleaks.unwind.stacks import NamedFrame

MANY = 5000
"""Fewest functions of one `def` or `lambda` that are reported. They must also be at least a quarter
of all functions. Large programs have tens of thousands of functions, but only few of one `def`,
such as the wrappers that a decorator creates."""
_MOST = 500_000  # functions that are read; each takes 2 µs
_LOOK = 1 << 12  # functions between two checks for the user's interrupt


def find_repeated_functions(
    target: Target, blocks: Blocks, known: Types, tally: ObjectTally, make_names: Callable[[], ObjectNames]
) -> Iterator[Finding]:
    """Yield a finding if many function objects share one code object; see MANY. `make_names`:
    returns the names of objects."""
    wanted = {at for at in range(len(known)) if known.plain_name(at) == "function"}
    if sum(tally.sums[SUMS * at] for at in wanted) < MANY:
        return
    frames, names = find_frame_reader(target), make_names()
    if frames is None or not names.is_supported:
        return

    def object_in(index: int) -> int:
        return blocks.address(index) + known.offsets[tally.found[index]]

    every = list(islice((index for index, kind in enumerate(tally.found) if kind in wanted), _MOST))
    codes = [names.code_of_function(object_in(index)) for index in interruptible(target, every, _LOOK)]
    address, count = max(Counter(codes).items(), key=lambda one: one[1], default=(0, 0))
    code = frames.read_code(address) if count >= MANY and 4 * count >= len(every) else None
    if code is None:
        return
    indices = [index for index, one in zip(every, codes) if one == address]
    function = names.name_object(indices[0]).partition(" ")[2]
    # Decorators give their wrappers the names of the wrapped functions, which differ.
    function = function if function.rpartition(".")[2] == code.function.rpartition(".")[2] else code.function
    many = f"at least {number(count)}" if len(every) == _MOST else number(count)
    yield _describe(function, code, many, Totals(count, sum(map(blocks.size, indices))), indices, object_in(indices[0]))


def _describe(function: str, code: CodeObject, many: str, totals: Totals, indices: Sequence[int], example: int) -> Finding:
    """Return the finding. `function`: the qualified name; `many`: the number of functions, as text;
    `example`: the address of an object."""
    place = NamedFrame(0, function, 0, "", code.file, code.first_line).place()
    title = f"In use, not leaked: {many} function objects of {shorten(function)} ({shorten(place)})."
    cause = f"Each execution of its definition created one. They take {size(totals.bytes)}, without the objects to which they refer."
    remedies = ("remove callbacks that are no longer needed, or register one function once",)
    facts: dict[str, object] = {"functions": totals.blocks, "function": function, "file": code.file, "line": code.first_line}
    commands = (f"path {example:#x}",)
    return Finding("repeated-functions", totals.bytes, title, cause, remedies, commands, facts, of_blocks=True, members=indices)
