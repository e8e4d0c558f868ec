"""Assemble the machine code of the stubs.

usage: python tools/assemble_stubs.py

Writes common/counting/generated/stub.py from stub.S, and common/tracking/generated/track.py from track.S.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
COUNT, TRACK = ROOT / "common" / "counting" / "stub.S", ROOT / "common" / "tracking" / "track.S"
COUNT_CODE, TRACK_CODE = COUNT.parent / "generated" / "stub.py", TRACK.parent / "generated" / "track.py"
COUNT_HEAD = '''"""The machine code of stub.S, made by `python tools/assemble_stubs.py` (a test compares them).

In COUNT and in STEP, the four bytes at TABLE are the distance to the table, and the eight bytes at
OPERAND are the operand.
"""

TABLE, OPERAND = {table}, {operand}
'''
TRACK_HEAD = '''"""The machine code of track.S, made by `python tools/assemble_stubs.py` (a test compares them).

Each stub begins with the words TABLE, KEY and OTHER, which are filled in. ENTRY has the offset at
which each stub is entered, and BACK the offset to which the function that it calls returns.
"""

TABLE, KEY, OTHER = 0, 8, 16
'''
STUBS = ("first", "second", "product", "stored", "throwing", "moving", "remapping", "freeing", "unmapping")
ROUTINES = ("begin", "record", "forget", "revive")


def assembled(source: Path) -> tuple[bytes, dict[str, int]]:
    """Assemble a source file; return the code, and the offsets of its labels."""
    with tempfile.TemporaryDirectory() as folder:
        made, flat = Path(folder) / "stub.o", Path(folder) / "stub.bin"
        subprocess.run(["gcc", "-c", "-o", str(made), str(source)], check=True)
        subprocess.run(["objcopy", "-O", "binary", "-j", ".text", str(made), str(flat)], check=True)
        code = flat.read_bytes()
        lines = subprocess.run(["nm", str(made)], check=True, capture_output=True, text=True).stdout.splitlines()
    return code, {words[2]: int(words[0], 16) for words in map(str.split, lines) if len(words) == 3}


def count_stubs() -> dict[str, bytes]:
    code, at = assembled(COUNT)
    return {name: code[at[f"{name}_begin"] : at[f"{name}_end"]] for name in ("count", "step")}


def counting() -> str:
    """The text of common/counting/generated/stub.py."""
    blobs = count_stubs()
    places = {(one.index(b"\x4c\x8d\x05") + 3, one.index(b"\x49\xbb") + 2) for one in blobs.values()}
    ((table, operand),) = places
    return COUNT_HEAD.format(table=table, operand=operand) + "".join(_constant(name.upper(), blob) for name, blob in blobs.items())


def tracking() -> str:
    """The text of common/tracking/generated/track.py."""
    code, at = assembled(TRACK)
    made = TRACK_HEAD
    for what in ("entry", "back"):
        places = {name: at[f"{name}_{what}"] - at[f"{name}_begin"] for name in STUBS if f"{name}_{what}" in at}
        rows = "".join(f'    "{name}": {where},\n' for name, where in places.items())
        made += f"{what.upper()} = {{\n{rows}}}\n"
    begin = at["routines_begin"]
    offsets = ", ".join(str(at[f"routines_{name}"] - begin) for name in ROUTINES)
    made += f"{', '.join(name.upper() for name in ROUTINES)} = {offsets}  # offsets in ROUTINES\n"
    made += "".join(_constant(name.upper(), code[at[f"{name}_begin"] : at[f"{name}_end"]]) for name in STUBS)
    return made + _constant("ROUTINES", code[begin : at["routines_end"]])


def _constant(name: str, code: bytes) -> str:
    lines = "\n".join(f'    "{code[at : at + 48].hex()}"' for at in range(0, len(code), 48))
    return f"\n{name} = bytes.fromhex(\n{lines}\n)\n"


if __name__ == "__main__":
    COUNT_CODE.write_text(counting())
    TRACK_CODE.write_text(tracking())
