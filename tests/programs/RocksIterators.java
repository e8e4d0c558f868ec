import java.nio.file.Files;
import java.util.ArrayList;
import java.util.List;
import org.rocksdb.FlushOptions;
import org.rocksdb.Options;
import org.rocksdb.ReadOptions;
import org.rocksdb.RocksDB;
import org.rocksdb.RocksIterator;

/** Iterators of RocksDB that are never closed: a number, and a folder. */
public class RocksIterators {
    static final List<RocksIterator> LOOKUPS = new ArrayList<>();

    static byte[] key(int number) {
        return String.format("key%08d", number).getBytes();
    }

    static void look(RocksDB base, int number) {
        RocksIterator found = base.newIterator(new ReadOptions());
        found.seek(key(number % 1000));
        LOOKUPS.add(found);
    }

    public static void main(String[] words) throws Exception {
        RocksDB base = RocksDB.open(new Options().setCreateIfMissing(true), words[1]);
        for (int number = 0; number < 1000; number++) {
            base.put(key(number), new byte[200]);
        }
        base.flush(new FlushOptions());
        for (int number = 0; number < Integer.parseInt(words[0]); number++) {
            look(base, number);
        }
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3_600_000);
    }
}
