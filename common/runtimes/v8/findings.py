"""Find handle scopes of V8 that accumulate handles and the memory that these keep alive."""

from __future__ import annotations

from collections.abc import Iterator

from findleaks.formatting import number, size
from findleaks.runtimes.finding import Finding
from findleaks.runtimes.v8.isolates import isolates
from findleaks.runtimes.v8.layout import Underivable, derive
from findleaks.target.base import Target

HANDLES = 10_000  # minimum number of handles of an isolate that is reported


def hoarded_handles(target: Target) -> Iterator[Finding]:
    """Yield isolates with HANDLES or more handles. Without V8 this costs some symbol look-ups."""
    try:
        layout = derive(target)
    except Underivable:
        return
    for isolate in isolates(target, layout):
        if isolate.handles >= HANDLES:
            held = len(isolate.blocks) * 8 * layout.handles
            handles = f"{number(isolate.handles)} handles ({size(held)})"
            title = f"V8's handle scopes contain {handles}, which keep the objects that they refer to alive."
            facts: dict[str, object] = {"isolate": hex(isolate.address), "handles": isolate.handles, "blocks": len(isolate.blocks)}
            cause = "Handles created while no inner scope is open are freed only when the outermost scope closes."
            remedies = ("open a HandleScope around each call into JavaScript",)
            yield Finding(
                "handle-scopes", held, title, cause, remedies, ("scopes", "count MakeCallback --outside-scope v8 --for 10"), facts
            )
