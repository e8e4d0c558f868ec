"""Report threads that ended and were never joined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from findleaks.audit.accounting import Accounting
from findleaks.formatting import number, size, some
from findleaks.runtimes.finding import Finding

ENDED = 10  # fewest unjoined threads for a finding; a few may be joined soon


def find_unjoined_threads(accounting: Accounting) -> Iterator[Finding]:
    """Yield one finding if at least ENDED threads ended and were not joined."""
    ended = accounting.unjoined
    if len(ended) >= ENDED:
        held = sum(place.bytes for place in ended)
        amount = f"{size(held)} resident, {size(accounting.unjoined_mapped)} mapped" if accounting.known else f"{size(held)} mapped"
        title = f"{number(len(ended))} threads ended and were never joined: their stacks are still allocated ({amount})."
        started = Counter(place.name for place in ended if place.name).most_common(3)
        cause = f"Start functions: {some([f'{name} ({number(count)})' for name, count in started])}." if started else ""
        remedies = ("call pthread_join for each thread, or pthread_detach if no thread waits for it",)
        facts: dict[str, object] = {
            "threads": len(ended),
            "mapped": accounting.unjoined_mapped,
            "examples": [hex(place.address) for place in ended[:3]],
        }
        facts["started"] = [{"function": name, "threads": count} for name, count in started]
        yield Finding("unjoined-threads", held, title, cause, remedies, ("stacks",), facts, held if accounting.known else None)
