import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;

/** Keeps COUNT connections of sqlite-jdbc, each to a database in memory of 75 KB. */
public class SqliteConnections {
    static final List<Connection> KEPT = new ArrayList<>();

    public static void main(String[] words) throws Exception {
        String text = new String(new char[1500]).replace('\0', 'x');
        for (int number = 0; number < Integer.parseInt(words[0]); number++) {
            Connection connection = DriverManager.getConnection("jdbc:sqlite::memory:");
            try (Statement statement = connection.createStatement()) {
                statement.execute("create table t(a integer primary key, b text)");
                for (int row = 0; row < 50; row++) {
                    statement.execute("insert into t(b) values('" + text + "')");
                }
            }
            KEPT.add(connection);
        }
        System.gc();
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3_600_000);
    }
}
