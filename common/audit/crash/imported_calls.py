"""Name the function that a frame calls."""

from __future__ import annotations

from findleaks.audit.crash.value_origin import Tracer
from findleaks.target.imports import name_import
from findleaks.target.ranges import region_at


def name_called_import(tracer: Tracer, level: int) -> str:
    """Return the name of the imported symbol that the frame at `level` calls; "" if it is unknown.
    Raises CapstoneMissing."""
    slot = tracer.called_slot(level)
    module = region_at(tracer.target.modules(), slot) if slot else None
    return name_import(tracer.target, module, slot) if module is not None else ""


def name_called(tracer: Tracer, level: int) -> str:
    """Return the name of the function that the frame at `level` calls: that of the imported symbol,
    or of the function itself; "" if it is unknown. Raises CapstoneMissing."""
    name = name_called_import(tracer, level)
    called = 0 if name else tracer.called_function(level)
    symbol = tracer.target.symbolize(called) if called else None
    return name or (symbol.name if symbol is not None and symbol.address == called else "")
