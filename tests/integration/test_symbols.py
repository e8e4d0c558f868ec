"""A symbol names only the memory that it covers, not the memory after it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import truth
from debuggers import findleaks

from cores import Running

MAIN = """
#include <stdio.h>
#include <unistd.h>
void **keep(int which);
int main(void) {
    void *behind = keep(0), *sized = keep(1);
    printf("%p %p\\nready\\n", behind, sized);
    fflush(stdout);
    pause();
}
"""


def test_words_after_a_symbol_have_no_name(tmp_path: Path) -> None:
    library = tmp_path / "libthing.so"
    (tmp_path / "main.c").write_text(MAIN)
    subprocess.run(["gcc", "-shared", "-fPIC", "-O1", "-s", "-o", library, truth.PROGRAMS / "symbols_library.c"], check=True)
    subprocess.run(["gcc", "-O1", "-o", tmp_path / "main", tmp_path / "main.c", library, f"-Wl,-rpath,{tmp_path}"], check=True)
    with Running([str(tmp_path / "main")], tmp_path / "run") as run:
        behind, sized = run.output.split()[:2]
        mark = hex(int(behind, 16) - 8)
        lines = findleaks("whatis", behind, sized, mark, "--pid", str(run.pid)).splitlines()
        first, second, third = (line for line in lines if line.startswith("0x"))
        roots = findleaks("roots", "--pid", str(run.pid))
    assert "libthing.so+0x" in first and "sizeless" not in first
    assert "sized (libthing.so, data)" in second
    assert "sizeless_mark (libthing.so, data)" in third
    assert "sizeless" not in roots and "libthing.so, data+0x" in roots
