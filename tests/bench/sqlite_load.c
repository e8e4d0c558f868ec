/* A program that uses SQLite as a server does: 300 tables with indices, views and triggers in memory, 3,000 prepared statements, and
 * 20,000 rows, about 15 in each page. SQLite comes from the source package of better-sqlite3, because it needs debug information:
 *
 *   npm pack better-sqlite3@11.1.2 && tar xzf better-sqlite3-11.1.2.tgz
 *   S=package/deps/sqlite3 && gcc -g -O2 -I$S -o sqlite_load tests/bench/sqlite_load.c $S/sqlite3.c -lm -lpthread -ldl
 *   ./sqlite_load & sleep 20; .venv/bin/python tests/bench/type_coverage.py $!
 */
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { TABLES = 300, STATEMENTS = 3000, ROWS = 20000 };

static void run(sqlite3 *database, const char *sql) {
    char *error = NULL;
    if (sqlite3_exec(database, sql, NULL, NULL, &error)) {
        fprintf(stderr, "%s: %s\n", sql, error);
        exit(1);
    }
}

int main(void) {
    static char sql[4000];
    sqlite3 *database;
    sqlite3_stmt *statements[STATEMENTS];
    sqlite3_config(SQLITE_CONFIG_LOOKASIDE, 0, 0); /* each object of a statement is a block */
    sqlite3_open(":memory:", &database);
    for (int t = 0; t < TABLES; t++) {
        snprintf(sql, sizeof sql,
                 "CREATE TABLE t%d(id INTEGER PRIMARY KEY, name TEXT NOT NULL DEFAULT 'x%d', v REAL CHECK(v>%d), w BLOB, "
                 "x INTEGER REFERENCES t0(id)); CREATE INDEX i%d ON t%d(name,v) WHERE v>3; "
                 "CREATE VIEW v%d AS SELECT name, count(*) FROM t%d WHERE v>1 GROUP BY name; "
                 "CREATE TRIGGER g%d AFTER INSERT ON t%d BEGIN UPDATE t%d SET v=v+1 WHERE id=new.id; END;",
                 t, t, t, t, t, t, t, t, t, t);
        run(database, sql);
    }
    run(database, "BEGIN");
    for (int i = 0; i < STATEMENTS; i++) {
        snprintf(sql, sizeof sql, "SELECT a.name,b.v FROM t%d a JOIN t%d b ON a.id=b.x WHERE a.v>?1 AND b.name LIKE ?2 ORDER BY 1", i % TABLES,
                 i * 7 % TABLES);
        if (sqlite3_prepare_v2(database, sql, -1, &statements[i], NULL)) {
            fprintf(stderr, "%s: %s\n", sql, sqlite3_errmsg(database));
            return 1;
        }
        sqlite3_bind_text(statements[i], 2, "abc%", -1, SQLITE_TRANSIENT);
    }
    for (int i = 0; i < ROWS; i++) {
        snprintf(sql, sizeof sql, "INSERT INTO t%d(name,v,w) VALUES('n%d',%d.5,zeroblob(200))", i % 50, i, i);
        run(database, sql);
    }
    run(database, "COMMIT");
    puts("ready");
    fflush(stdout);
    pause();
    return statements[0] == NULL;
}
