import java.util.HashMap;
import java.util.Map;
import java.util.Random;
import org.rocksdb.BlockBasedTableConfig;
import org.rocksdb.Cache;
import org.rocksdb.CompressionType;
import org.rocksdb.FlushOptions;
import org.rocksdb.LRUCache;
import org.rocksdb.Options;
import org.rocksdb.RocksDB;
import org.rocksdb.RocksIterator;

/** Keeps three databases of 10 MB each. Arguments: "tables" (data in memtables) or "cache" (in a shared block cache), and a folder. */
public class RocksStores {
    static final Map<String, RocksDB> STORES = new HashMap<>();
    static Cache cache;

    static RocksDB fill(RocksDB store, boolean cached) throws Exception {
        Random random = new Random(1);
        byte[] value = new byte[1000];
        for (int number = 0; number < 10_000; number++) {
            random.nextBytes(value);
            store.put(("key" + number).getBytes(), value);
        }
        if (cached) {
            store.flush(new FlushOptions().setWaitForFlush(true));
            try (RocksIterator all = store.newIterator()) {
                for (all.seekToFirst(); all.isValid(); all.next()) {
                    all.value();
                }
            }
        }
        return store;
    }

    public static void main(String[] words) throws Exception {
        RocksDB.loadLibrary();
        boolean cached = words[0].equals("cache");
        cache = new LRUCache(256L << 20);
        for (int number = 0; number < 3; number++) {
            BlockBasedTableConfig table = new BlockBasedTableConfig().setBlockCache(cache);
            Options options = new Options().setCreateIfMissing(true).setWriteBufferSize(256L << 20);
            options.setTableFormatConfig(table).setCompressionType(CompressionType.NO_COMPRESSION);
            STORES.put("store" + number, fill(RocksDB.open(options, words[1] + "/" + number), cached));
        }
        System.gc();
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3_600_000);
    }
}
