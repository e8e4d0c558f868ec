import java.lang.ref.SoftReference;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;

/** Keeps 40 MB in objects. The first argument selects what holds them. The stack of the main thread also refers to them. */
public class JavaHolders {
    static final int EACH = 20_000, COUNT = 2000, THREADS = 100, MUCH = 40_000_000;
    static final Map<String, Object> REGISTRY = new HashMap<>();
    static final List<ByteBuffer> SMALL = new ArrayList<>(), LARGE = new ArrayList<>();
    static final InheritableThreadLocal<byte[]> INHERITED = new InheritableThreadLocal<>();
    static final CountDownLatch STARTED = new CountDownLatch(THREADS);

    static class Page {
        final byte[] content = new byte[EACH];
    }

    static void sleep() {
        try {
            Thread.sleep(1_000_000);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    public static void main(String[] words) throws InterruptedException {
        Map<Integer, SoftReference<Page>> pages = new HashMap<>();
        if (words[0].equals("soft")) {
            REGISTRY.put("pages", pages);
            for (int at = 0; at < COUNT; at++) pages.put(at, new SoftReference<>(new Page()));
        } else if (words[0].equals("inherited")) {
            INHERITED.set(new byte[MUCH]);
            for (int at = 0; at < THREADS; at++) {
                Thread thread = new Thread(() -> {
                    STARTED.countDown();
                    sleep();
                });
                thread.setDaemon(true);
                thread.start();
            }
            STARTED.await();
            INHERITED.remove();
        } else {
            for (int at = 0; at < COUNT; at++) SMALL.add(ByteBuffer.allocateDirect(16));
            for (int at = 0; at < 2; at++) LARGE.add(ByteBuffer.allocateDirect(MUCH / 2));
        }
        System.out.println("ready");
        System.out.flush();
        synchronized (pages) {
            sleep();
        }
        System.out.println(pages.size());
    }
}
