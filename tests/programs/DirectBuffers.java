import java.nio.ByteBuffer;
import java.util.concurrent.CountDownLatch;

/** Each thread keeps one direct buffer in a thread-local variable. Arguments: number of threads, bytes of a buffer. Prints "ready". */
public class DirectBuffers {
    static final ThreadLocal<ByteBuffer> SCRATCH = new ThreadLocal<>();

    public static void main(String[] words) throws Exception {
        int count = Integer.parseInt(words[0]), size = Integer.parseInt(words[1]);
        CountDownLatch done = new CountDownLatch(count), never = new CountDownLatch(1);
        for (int i = 0; i < count; i++) {
            Thread one = new Thread(() -> {
                SCRATCH.set(ByteBuffer.allocateDirect(size));
                done.countDown();
                try {
                    never.await();
                } catch (InterruptedException end) {
                    return;
                }
            });
            one.setDaemon(true);
            one.start();
        }
        done.await();
        System.gc();
        System.out.println("ready");
        Thread.sleep(3600000);
    }
}
