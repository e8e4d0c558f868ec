import java.util.concurrent.CountDownLatch;

/**
 * COUNT threads, all of which run at the same time, have ended. Nothing refers to their Thread objects, each of which refers to a class loader with
 * 100 KB, and the collector has not run since. Prints "ready".
 */
public class EndedThreads {
    static class Loader extends ClassLoader {
        final byte[] content = new byte[100_000];
    }

    static void run(int count) throws InterruptedException {
        Thread[] threads = new Thread[count];
        CountDownLatch started = new CountDownLatch(count), ending = new CountDownLatch(1);
        for (int number = 0; number < count; number++) {
            threads[number] = new Thread(() -> {
                started.countDown();
                try {
                    ending.await();
                } catch (InterruptedException e) {
                    throw new IllegalStateException(e);
                }
            });
            threads[number].setContextClassLoader(new Loader());
            threads[number].start();
        }
        started.await();
        ending.countDown();
        for (Thread thread : threads) {
            thread.join();
        }
    }

    public static void main(String[] words) throws InterruptedException {
        run(Integer.parseInt(words[0]));
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3_600_000);
    }
}
