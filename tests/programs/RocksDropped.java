import java.nio.file.Files;
import java.nio.file.Paths;
import org.rocksdb.Options;
import org.rocksdb.RocksDB;

/** Opens COUNT databases of RocksDB in FOLDER, writes 2 MB to each, and drops them without closing them. */
public class RocksDropped {
    static void open(String folder) throws Exception {
        Files.createDirectories(Paths.get(folder));
        RocksDB base = RocksDB.open(new Options().setCreateIfMissing(true), folder);
        for (int number = 0; number < 2000; number++) {
            base.put(("key" + number).getBytes(), new byte[1000]);
        }
    }

    public static void main(String[] words) throws Exception {
        for (int number = 0; number < Integer.parseInt(words[0]); number++) {
            open(Paths.get(words[1], "base" + number).toString());
        }
        System.gc();
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3_600_000);
    }
}
