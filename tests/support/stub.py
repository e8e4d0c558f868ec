"""common/counting/stubcode.py, made of stub.S by the assembler.

usage: python tests/support/stub.py: prints it. `python tests/support/stub.py >common/counting/stubcode.py` after a change to stub.S.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "common" / "counting" / "stub.S"
HEAD = '''"""The machine code of stub.S, made by `python tests/support/stub.py` (a test compares them).

In both, the four bytes at TABLE are the distance to the table, and the eight bytes at OPERAND the
operand.
"""

TABLE, OPERAND = {table}, {operand}

COUNT = bytes.fromhex(
{count}
)

STEP = bytes.fromhex(
{step}
)
'''


def assembled() -> dict[str, bytes]:
    """The bytes between each NAME_begin and NAME_end."""
    with tempfile.TemporaryDirectory() as folder:
        made, flat = Path(folder) / "stub.o", Path(folder) / "stub.bin"
        subprocess.run(["gcc", "-c", "-o", str(made), str(SOURCE)], check=True)
        subprocess.run(["objcopy", "-O", "binary", "-j", ".text", str(made), str(flat)], check=True)
        code = flat.read_bytes()
        lines = subprocess.run(["nm", str(made)], check=True, capture_output=True, text=True).stdout.splitlines()
    at = {words[2]: int(words[0], 16) for words in map(str.split, lines) if len(words) == 3}
    return {name: code[at[f"{name}_begin"] : at[f"{name}_end"]] for name in ("count", "step")}


def module() -> str:
    """The text of stubcode.py."""
    code = assembled()
    places = {(one.index(b"\x4c\x8d\x05") + 3, one.index(b"\x49\xbb") + 2) for one in code.values()}
    ((table, operand),) = places
    return HEAD.format(table=table, operand=operand, count=_lines(code["count"]), step=_lines(code["step"]))


def _lines(code: bytes) -> str:
    return "\n".join(f'    "{code[at : at + 48].hex()}"' for at in range(0, len(code), 48))


if __name__ == "__main__":
    print(module(), end="")
