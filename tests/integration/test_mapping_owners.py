"""Mappings that are roots: `roots` names the variables that refer to them, by symbol or by place in the file."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from debuggers import findleaks

import cores

# These mappings contain the addresses of blocks. Inaccessible mappings between them keep the kernel from joining them. Many words refer to
# the last mapping.
SOURCE = """
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
enum { PAGE = 4096 };
char *g_arena;
struct { long used; char *slab; } g_state;
char *g_pages[64];
static char *map(int pages) {
    mmap(0, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *start = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mmap(0, 1 << 20, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int page = 0; page < pages; page++) *(char **)(start + page * PAGE) = malloc(200);
    return start;
}
int main(void) {
    g_arena = map(512);
    g_state.slab = map(256);
    g_pages[0] = map(64);
    for (int page = 1; page < 64; page++) g_pages[page] = g_pages[0] + page * PAGE;
    puts("ready");
    fflush(stdout);
    sleep(3600);
}
"""


@pytest.mark.parametrize("stripped", [False, True])
def test_variables_that_refer_to_mappings(stripped: bool, tmp_path: Path) -> None:
    (tmp_path / "mapper.c").write_text(SOURCE)
    program = tmp_path / "mapper"
    subprocess.run(["gcc", "-O1", *(["-s"] if stripped else []), "-o", program, tmp_path / "mapper.c"], check=True)
    with cores.Running([str(program)], tmp_path / "run") as running:
        found = json.loads(findleaks("roots", "--json", "--pid", str(running.pid)))["roots"]
    names = {one["retained_blocks"]: one["name"] for one in found if one["name"].startswith("anonymous mapping")}
    arena, slab = (r"mapper\+0x[0-9a-f]+",) * 2 if stripped else ("g_arena of mapper", r"g_state\+0x8 of mapper")
    assert re.fullmatch(rf"anonymous mapping at 0x[0-9a-f]+ \(2\.0 MiB; {arena} refers to it\)", names[512])
    assert re.fullmatch(rf"anonymous mapping at 0x[0-9a-f]+ \(1\.0 MiB; {slab} refers to it\)", names[256])
    assert re.fullmatch(r"anonymous mapping at 0x[0-9a-f]+ \(256 KiB\)", names[64])
