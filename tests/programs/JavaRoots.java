import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;

/** Static variables, thread-local variables, a local variable and class loaders retain arrays. Prints "ready". Arguments: the number of
 * arrays in `table` (3000), and of threads with a thread-local variable (3). */
public class JavaRoots {
    static byte[][] table;
    static final ThreadLocal<byte[][]> BUFFERS = new ThreadLocal<>();
    static final List<ClassLoader> LOADERS = new ArrayList<>();

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
        CountDownLatch allocating = new CountDownLatch(workers + 1);
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
