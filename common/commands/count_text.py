"""Write the result of `count`: a table of stacks as text, folded lines for flame graphs, or
JSON."""

from __future__ import annotations

import argparse
import collections
from collections.abc import Iterator, Mapping, Sequence
from typing import Union

from findleaks.commands import Invocation
from findleaks.commands.frames import frame_label
from findleaks.commands.limits import first, in_text
from findleaks.commands.result import written_lines
from findleaks.counting.calls import counted_calls
from findleaks.counting.counter import Counter, Table
from findleaks.counting.stub_counter import Injected
from findleaks.formatting import format_count, number, printable
from findleaks.results.written import WrittenFile, document
from findleaks.unwind.stacks import NamedFrame, without_parameters

STACKS = 10  # Maximum number of stacks printed as text without --limit.


class CountResult:
    """One of the tables that `count` prints while it runs. `index`: number of the table, from 0."""

    status = 0

    def __init__(
        self,
        counter: Union[Counter, Injected],
        table: Table,
        index: int,
        args: argparse.Namespace,
        notes: Sequence[str] = (),
        written: Union[WrittenFile, str, None] = None,
    ) -> None:
        """`written`: the file of -o, or the reason why it was not written."""
        self._written = written if isinstance(written, WrittenFile) else None
        if isinstance(written, str):
            self.status, notes = 2, (*notes, written)
        self._counter, self._table, self._index = counter, table, index
        self._args, self._notes = args, notes

    def text(self, width: int, invocation: Invocation) -> Iterator[str]:
        """Yield the lines of the table. After the last table, also yield the reason why counting
        ended."""
        if self._args.folded:
            if self._table.last:
                yield from _fold_stacks(self._table)
            return
        if self._index:
            yield ""
        yield from self._stacks(width)
        if self._table.last:
            yield from written_lines(self._written, width)
            yield from self._end(invocation)

    def _stacks(self, width: int) -> Iterator[str]:
        table = self._table
        made = "made outside a scope" if self._counter.wanted.rule is not None else "match" if self._args.when else ""
        calls, stacks = format_count(table.events, "call"), format_count(len(table.stacks), "stack")
        yield f"{table.seconds:.1f} s: " + (f"{number(table.matched)} of {calls} {made}, {stacks}" if made else f"{calls}, {stacks}")
        shown = first(table.stacks, in_text(self._args.limit, STACKS))
        wide = max((len(number(stack.count)) for stack in shown), default=0)
        for stack in shown:
            yield ""
            frames = first(stack.frames, self._args.frames)
            for place, frame in enumerate(frames):
                yield f"  {number(stack.count) if not place else '':>{wide}}  {_label(frame, width - wide - 4)}"
            if len(frames) < len(stack.frames):
                yield f"  {'':>{wide}}  … {number(len(stack.frames) - len(frames))} more (--frames 0)"
            if stack.end:
                yield f"  {'':>{wide}}  (incomplete: {stack.end})"
        if len(shown) < len(table.stacks):
            rest = table.stacks[len(shown) :]
            of = number(sum(stack.count for stack in rest))
            yield f"  {format_count(len(rest), 'more stack')} of {of} calls (--limit 0)"
        for line in _describe_lost(table):
            yield f"  {line}"

    def _end(self, invocation: Invocation) -> Iterator[str]:
        table, pid = self._table, self._counter.pid
        yield ""
        why = {"interrupt": "interrupted", "ended": f"process {pid} has ended"}.get(table.outcome.why, "stopped")
        if table.outcome.text:
            why += f" ({table.outcome.text})"
        for note in (*self._notes, *table.notes):
            yield f"  {printable(note, 600)}"
        if table.outcome.why == "ended":
            yield f"  {why}; the table contains the calls counted until then."
        elif self._args.inject:
            some = any("stay" in note or "left" in note for note in table.notes)
            left = f"all {'other ' if some else ''}changes to the process were removed"
            yield f"  {why}; " + (f"{pid} keeps running; {left}." if invocation.target else f"{left}. The process is stopped, as before.")
        elif invocation.target:
            yield f"  {why}; {pid} keeps running; all changes to the process were removed."
        else:
            yield f"  {why}; the breakpoints were removed. The process is stopped, as before: `continue`, or `detach`."

    def json(self) -> Iterator[Mapping[str, object]]:
        table = self._table
        warnings = [*self._notes, *table.notes, *_describe_lost(table)]
        yield document("count", counted_calls(self._counter, table, self._args.limit), warnings, self._written)


def _label(frame: NamedFrame, width: int) -> str:
    return frame_label(frame._replace(function=without_parameters(frame.function) or frame.function), width)


def _fold_stacks(table: Table) -> Iterator[str]:
    lines: collections.Counter[str] = collections.Counter()
    for stack in table.stacks:
        lines[";".join(_name(frame) for frame in reversed(stack.frames))] += stack.count
    for line, count in lines.most_common():
        yield f"{line} {count}"


def _name(frame: NamedFrame) -> str:
    name = without_parameters(frame.function) if frame.function else frame.module or hex(frame.address)
    return printable(name, 2000).replace(";", ",")


def _describe_lost(table: Table) -> Iterator[str]:
    if table.stack_table_full:
        calls = "call has" if table.stack_table_full == 1 else "calls have"
        yield f"{number(table.stack_table_full)} {calls} no stack here: the table of stacks is full"
    if table.undecided:
        calls, scope = ("call was", "it was") if table.undecided == 1 else ("calls were", "they were")
        yield f"{number(table.undecided)} {calls} not counted: findleaks could not determine in time whether {scope} outside a scope"
