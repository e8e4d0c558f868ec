import java.lang.ref.Cleaner;
import java.nio.ByteBuffer;
import java.util.concurrent.CountDownLatch;

/** Drops COUNT objects with a cleaning action that refers to a direct buffer of 30,000 bytes. The thread of the Cleaner waits in another action. */
public class BlockedCleaner {
    static final Cleaner CLEANER = Cleaner.create();
    static final CountDownLatch STARTED = new CountDownLatch(1);

    static void sleep() {
        STARTED.countDown();
        try {
            Thread.sleep(3_600_000);
        } catch (InterruptedException exception) {
            throw new IllegalStateException(exception);
        }
    }

    static void drop(int number) {
        ByteBuffer buffer = ByteBuffer.allocateDirect(30_000);
        CLEANER.register(new Object(), () -> buffer.put(0, (byte) number));
    }

    public static void main(String[] words) throws Exception {
        CLEANER.register(new Object(), BlockedCleaner::sleep);
        System.gc();
        STARTED.await();
        for (int number = 0; number < Integer.parseInt(words[0]); number++) {
            drop(number);
        }
        System.gc();
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3_600_000);
    }
}
