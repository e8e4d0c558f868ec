/* Connections of SQLite, whose malloc puts each block's length in front of it. Prints SQLite's own count of its memory, then "ready". */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static sqlite3 *volatile connections[4096];

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 100;
    for (int i = 0; i < count && i < 4096; i++) {
        sqlite3 *made;
        if (sqlite3_open(":memory:", &made) || sqlite3_exec(made, "create table t(a, b); insert into t values (1, 'x')", 0, 0, 0)) return 1;
        connections[i] = made;
    }
    printf("%lld\nready\n", (long long)sqlite3_memory_used());
    fflush(stdout);
    pause();
}
