import org.rocksdb.ColumnFamilyOptions;
import org.rocksdb.LRUCache;
import org.rocksdb.RocksDB;

/**
 * Drops COUNT options of RocksDB without closing them. They have no finalizer, so that their native memory is leaked. With one
 * more word, one object is kept. With the word "caches", the dropped objects are caches, to which the native memory refers by shared_ptr.
 */
public class RocksOptions {
    static ColumnFamilyOptions kept;

    public static void main(String[] words) throws Exception {
        RocksDB.loadLibrary();
        for (int number = 0; number < Integer.parseInt(words[0]); number++) {
            if (words.length > 1 && words[1].equals("caches")) {
                new LRUCache(1 << 20);
            } else {
                new ColumnFamilyOptions();
            }
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
