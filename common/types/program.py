"""The types of a process: one table of all modules, with the addresses of the process."""

from __future__ import annotations

import os
from typing import Optional

from findleaks.debuginfo.type_table import TypeTable
from findleaks.target.base import Target

LARGEST = 4 << 20  # bytes of the file, until there is an index of types


def read_program_types(target: Target) -> Optional[TypeTable]:
    """Return the types of the program; None without debug information."""
    from findleaks.target.separate import has_debug_info

    for module in target.modules()[:1]:
        for data in target.debug_data(module):
            if has_debug_info(data) and os.path.isfile(module.path) and os.path.getsize(module.path) < LARGEST:
                from findleaks.debuginfo.type_reader_slow import read_types_slowly

                table = read_types_slowly(module.path)
                for at in range(len(table.variable_addresses)):
                    table.variable_addresses[at] += module.bias
                return table
    return None
