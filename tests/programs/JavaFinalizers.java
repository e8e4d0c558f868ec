import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;

/**
 * Drops 20,000 objects of 1 KiB, and blocks the thread that calls their finalizers. With the word "used", a local variable keeps the
 * objects instead. Prints "ready".
 */
public class JavaFinalizers {
    static final Object LOCK = new Object();
    static volatile boolean hasBegun;

    static class Page {
        final byte[] content = new byte[1024];

        protected void finalize() {
            hasBegun = true;
            synchronized (LOCK) {
                content[0]++;
            }
        }
    }

    static void use() throws Exception {
        List<Page> pages = new ArrayList<>();
        for (int page = 0; page < 20_000; page++) {
            pages.add(new Page());
        }
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3_600_000);
        System.out.println(pages);
    }

    public static void main(String[] words) throws Exception {
        if (words.length > 0) {
            use();
        }
        synchronized (LOCK) {
            for (int page = 0; page < 20_000; page++) {
                new Page();
            }
            while (!hasBegun) {
                System.gc();
                Thread.sleep(10);
            }
            while (ManagementFactory.getMemoryMXBean().getObjectPendingFinalizationCount() < 19_990) {
                System.gc();
                Thread.sleep(10);
            }
            System.out.println("ready");
            System.out.flush();
            Thread.sleep(3_600_000);
        }
    }
}
