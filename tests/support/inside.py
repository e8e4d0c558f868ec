"""Runs in GDB or LLDB with findleaks loaded: the code of many functions of a process's Node and libc, as the debugger's disassembler and as
our decoder reads it. Prints one line of JSON."""

import json
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))

import readings

STEP = 160
"""One function in so many is looked at."""

LONGEST = 4000
"""Bytes of a function that is looked at."""


def opened():
    """The target as our commands open it."""
    try:
        from findleaks.gdb.target import subject
    except ImportError:
        import lldb
        from findleaks.lldb.target import subject

        selected = lldb.SBExecutionContext(lldb.debugger.GetSelectedTarget())
        return subject(lldb.debugger, selected, None).open()
    return subject().open()


def looked_at(target):
    """The functions' symbols, of V8 and of libc."""
    code = [region for region in target.regions() if region.executable]
    for module in target.modules():
        name = os.path.basename(module.path)
        symbols = target.symbols_of(module)
        found = symbols.starting("_ZN2v8") if name == "node" else symbols.starting("__") if name == "libc.so.6" else []
        for symbol in [one for one in found if 0 < one.size < LONGEST][::STEP]:
            if any(symbol.address in region for region in code):
                yield symbol


def main():
    target = opened()
    answer = {"functions": 0, "refused": 0, "seen": 0, "whole": 0, "differing": []}
    for symbol in looked_at(target):
        code = target.read(symbol.address, symbol.size)
        lines = target.disassembler(symbol.address, code)
        answer["functions"] += 1
        if lines is None:
            answer["refused"] += 1
            continue
        found = readings.compared(code, lines)
        answer["seen"] += found.seen
        answer["whole"] += found.whole
        answer["differing"] += found.differing[:3]
    print(json.dumps(answer), flush=True)


main()
