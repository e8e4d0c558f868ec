import org.rocksdb.ColumnFamilyOptions;
import org.rocksdb.RocksDB;

/**
 * Drops COUNT options of RocksDB without closing them. They have no finalizer, so that their native memory is leaked. With one
 * more word, one object is kept.
 */
public class RocksOptions {
    static ColumnFamilyOptions kept;

    public static void main(String[] words) throws Exception {
        RocksDB.loadLibrary();
        for (int number = 0; number < Integer.parseInt(words[0]); number++) {
            new ColumnFamilyOptions();
        }
        if (words.length > 1) {
            kept = new ColumnFamilyOptions();
        }
        System.gc();
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3_600_000);
    }
}
