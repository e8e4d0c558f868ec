"""Read one core in a separate process, on a worker. Standard input names the core as JSON, and the
row of the core is written to standard output."""

from __future__ import annotations

import json
import os
import sys

from findleaks.triage.examine import Source
from findleaks.triage.fleet import end_with_parent
from findleaks.triage.pool import default_limits, examine_all


def main() -> None:
    end_with_parent()
    asked = json.load(sys.stdin)
    limits = default_limits(1, asked["memory"], asked["timeout"], asked["sysroot"])
    ((_, row),) = examine_all([Source(*asked["source"])], limits)
    with os.fdopen(1, "w", encoding="ascii") as out:
        json.dump(row.pack(), out)
