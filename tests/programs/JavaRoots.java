import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;

/** Static variables, thread-local variables, a local variable and class loaders retain arrays. Prints "ready". Arguments: the number of
 * arrays in `table` (3000), of threads with a thread-local variable (3), and of entries in a list (none). If there is a list, a static variable
 * retains it, and local variables of the thread "reader" refer to its middle. */
public class JavaRoots {
    static byte[][] table;
    static final ThreadLocal<byte[][]> BUFFERS = new ThreadLocal<>();
    static final List<ClassLoader> LOADERS = new ArrayList<>();

    static Entry journal;

    static class Entry {
        Entry next;
        byte[] content = new byte[1000];
    }

    static class Cursor {
        Entry at;
    }

    /** A class that each loader defines again, with a static variable of its own. */
    public static class Plugin {
        public static byte[] cache = new byte[100_000];
    }

    static class Loader extends ClassLoader {
        Class<?> define(byte[] code) {
            return defineClass("JavaRoots$Plugin", code, 0, code.length);
        }
    }

    static byte[][] arrays(int count) {
        byte[][] made = new byte[count][];
        for (int number = 0; number < count; number++) {
            made[number] = new byte[1000];
        }
        return made;
    }

    static void work(boolean isLocal, CountDownLatch allocating) {
        byte[][] mine = arrays(isLocal ? 2000 : 0);
        if (!isLocal) {
            BUFFERS.set(arrays(500));
        }
        allocating.countDown();
        try {
            Thread.sleep(3_600_000);
        } catch (InterruptedException e) {
            throw new AssertionError(e);
        }
        System.out.println(mine.length);
    }

    /** Park in the middle of the list. */
    static void read(int steps, CountDownLatch parking) {
        Cursor cursor = new Cursor();
        cursor.at = journal;
        for (int number = 0; number < steps; number++) {
            cursor.at = cursor.at.next;
        }
        Entry entry = cursor.at;
        parking.countDown();
        try {
            Thread.sleep(3_600_000);
        } catch (InterruptedException e) {
            throw new AssertionError(e);
        }
        System.out.println(entry == cursor.at);
    }

    static byte[] code() throws Exception {
        ByteArrayOutputStream read = new ByteArrayOutputStream();
        try (InputStream stream = JavaRoots.class.getResourceAsStream("JavaRoots$Plugin.class")) {
            for (int one = stream.read(); one >= 0; one = stream.read()) {
                read.write(one);
            }
        }
        return read.toByteArray();
    }

    public static void main(String[] words) throws Exception {
        table = arrays(words.length > 0 ? Integer.parseInt(words[0]) : 3000);
        int workers = words.length > 1 ? Integer.parseInt(words[1]) : 3;
        byte[] code = code();
        for (int number = 0; number < 12; number++) {
            Loader loader = new Loader();
            loader.define(code).getField("cache").get(null);
            LOADERS.add(loader);
        }
        int entries = words.length > 2 ? Integer.parseInt(words[2]) : 0;
        for (int number = 0; number < entries; number++) {
            Entry entry = new Entry();
            entry.next = journal;
            journal = entry;
        }
        CountDownLatch allocating = new CountDownLatch(workers + 1 + Math.min(entries, 1));
        if (entries > 0) {
            Thread reader = new Thread(() -> read(entries / 2, allocating), "reader");
            reader.setDaemon(true);
            reader.start();
        }
        for (int number = 0; number < workers + 1; number++) {
            boolean isLocal = number == workers;
            Thread thread = new Thread(() -> work(isLocal, allocating), isLocal ? "holder" : "worker" + number);
            thread.setDaemon(true);
            thread.start();
        }
        allocating.await();
        System.gc();
        System.out.println("ready");
        Thread.sleep(3_600_000);
    }
}
