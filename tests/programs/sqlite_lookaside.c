/* Connections of SQLite with prepared statements. Prints "statement ADDRESS" for each, and for each connection "connection ADDRESS USED":
 * the slots of its lookaside buffer that are in use, as SQLite counts them. Then prints "ready". */
#include <sqlite3.h>
#include <stdio.h>
#include <unistd.h>

#define CONNECTIONS 20

static sqlite3 *connections[CONNECTIONS];
static sqlite3_stmt *statements[CONNECTIONS][40];

int main(void) {
    for (int i = 0; i < CONNECTIONS; i++) {
        if (sqlite3_open(":memory:", &connections[i]) || sqlite3_exec(connections[i], "create table t(a, b); create index u on t(b)", 0, 0, 0)) return 1;
        if (i % 5 == 4) sqlite3_db_config(connections[i], SQLITE_DBCONFIG_LOOKASIDE, NULL, 512 + 128 * i, 30);
        for (int k = 0; k < 2 * i; k++) {
            char text[200];
            sprintf(text, "select a + %d, upper(b) from t where b > ?1 and a < %d order by a", k, i);
            if (sqlite3_prepare_v2(connections[i], text, -1, &statements[i][k], NULL)) return 1;
            if (k % 4 == 1) {
                sqlite3_bind_text(statements[i][k], 1, "a value of the statement", -1, SQLITE_TRANSIENT);
                sqlite3_step(statements[i][k]);
            }
            if (k % 3 == 2) {
                sqlite3_finalize(statements[i][k]);
                statements[i][k] = NULL;
            }
        }
    }
    for (int i = 0; i < CONNECTIONS; i++) {
        int used, highest;
        sqlite3_db_status(connections[i], SQLITE_DBSTATUS_LOOKASIDE_USED, &used, &highest, 0);
        printf("connection %p %d\n", (void *)connections[i], used);
        for (int k = 0; k < 40; k++)
            if (statements[i][k]) printf("statement %p\n", (void *)statements[i][k]);
    }
    printf("ready\n");
    fflush(stdout);
    pause();
}
