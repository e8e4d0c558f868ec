import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CountDownLatch;

/**
 * COUNT threads, all of which run at the same time, have ended. Nothing refers to their Thread objects, each of which refers to a class loader with
 * 100 KB, and the collector has not run since. Prints "ready".
 */
public class EndedThreads {
    static class Loader extends ClassLoader {
        final byte[] content = new byte[100_000];
    }

    /** Paths such as "42/task/43" of all threads. Thread.join() returns while the JVM still has the thread that ends, and refers to its object. */
    static final Queue<Path> TASKS = new ConcurrentLinkedQueue<>();

    static void addTask() {
        try {
            TASKS.add(Files.readSymbolicLink(Paths.get("/proc/thread-self")));
        } catch (IOException e) {
            throw new IllegalStateException(e);
        }
    }

    static void run(int count) throws InterruptedException {
        Thread[] threads = new Thread[count];
        CountDownLatch started = new CountDownLatch(count), ending = new CountDownLatch(1);
        for (int number = 0; number < count; number++) {
            threads[number] = new Thread(() -> {
                addTask();
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
        for (Path task : TASKS) {
            while (Files.exists(Paths.get("/proc").resolve(task))) {
                Thread.sleep(1);
            }
        }
        Arrays.fill(threads, null); // a stale word of the stack may refer to the array
    }

    public static void main(String[] words) throws InterruptedException {
        run(Integer.parseInt(words[0]));
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3_600_000);
    }
}
