"""Convert the table of `count` to a result."""

from __future__ import annotations

from typing import Optional, Union

from findleaks.answers.sites import native_frame
from findleaks.counting.counter import Counter, Table
from findleaks.counting.stub_counter import Injected
from findleaks.results.count import Calls, CountedFunction, CountedStack


def counted_calls(counter: Union[Counter, Injected], table: Table, limit: Optional[int] = None) -> Calls:
    """Return the calls until `table` was made, with `limit` stacks (0, None: all)."""
    return Calls(
        [CountedFunction(one.address, one.name, one.module) for one in counter.functions],
        "inject" if isinstance(counter, Injected) else "breakpoints",
        table.events,
        table.matched,
        table.stack_table_full,
        table.undecided,
        seconds=round(table.seconds, 3),
        last=table.last,
        end=table.outcome.why if table.last else None,
        why=table.outcome.text or None,
        stacks=[
            CountedStack(stack.count, [native_frame(frame) for frame in stack.frames], not stack.end, stack.end or None)
            for stack in table.stacks[: limit or None]
        ],
    )
