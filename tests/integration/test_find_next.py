"""`find` suggests `verdict` first if the leaks do not explain the memory, whichever kinds of leaks it lists."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from debuggers import findleaks

import cores

# The first argument is the number of leaked blocks. Only a pointer to its inside refers to one more block.
SOURCE = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
char *g_kept[2000];
char *g_inside;
static void __attribute__((noinline)) fill(int lost) {
    for (int at = 0; at < 2000; at++) g_kept[at] = malloc(5000);
    for (int at = 0; at < lost; at++) *(char *volatile *)malloc(3000) = NULL;
    g_inside = (char *)malloc(200) + 104;
}
static void __attribute__((noinline)) wipe(void) { volatile char stack[30000]; memset((void *)stack, 0, sizeof stack); }
int main(int count, char **words) {
    fill(count > 1 ? atoi(words[1]) : 0);
    wipe();
    puts("ready");
    fflush(stdout);
    sleep(3600);
}
"""


@pytest.mark.parametrize(("lost", "is_small"), [(1, True), (3000, False)])
def test_kinds_that_are_not_listed(lost: int, is_small: bool, tmp_path: Path) -> None:
    (tmp_path / "loser.c").write_text(SOURCE)
    program = tmp_path / "loser"
    subprocess.run(["gcc", "-O1", "-o", program, tmp_path / "loser.c"], check=True)
    with cores.Running([str(program), str(lost)], tmp_path / "run") as running:
        for words in ((), ("--kind", "possible")):
            found = json.loads(findleaks("find", *words, "--json", "--pid", str(running.pid)))
            assert found["totals"]["possible"]["blocks"] == 1 and found["totals"]["definite"]["blocks"] in (lost - 1, lost)
            assert (found["next"][0] == "verdict") == is_small
