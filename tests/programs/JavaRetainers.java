import java.util.*;
import java.util.concurrent.*;

/** Leaks of Java programs that collections of the JDK retain: JavaRetainers KIND. Each retains 20,000 objects of 1 KiB. */
public class JavaRetainers {
    private static final int COUNT = 20_000, THREADS = 8;
    private static final int DEPTH = 300; // calls; their frames are larger than those of a thread that waits

    static final class Page {
        final byte[] content = new byte[1024];
    }

    static final class Context {
        final List<Page> pages = new ArrayList<>();
    }

    static final class Task implements Runnable {
        final Page page = new Page();

        public void run() {
            try {
                Thread.sleep(Long.MAX_VALUE);
            } catch (InterruptedException e) {
                Thread.currentThread().interrupt();
            }
        }
    }

    static final class Statistics {
        final Page page;

        Statistics(Page page) {
            this.page = page;
        }
    }

    private static final ThreadLocal<Context> CONTEXT = ThreadLocal.withInitial(Context::new);
    private static final Map<Page, Statistics> STATISTICS = Collections.synchronizedMap(new WeakHashMap<>());

    /**
     * Run a task below many frames. Otherwise, the frames of a thread that waits later may contain words that the task left on the stack.
     * Each such word is a root.
     */
    private static <T> T runDeep(int depth, Callable<T> task) throws Exception {
        return depth > 0 ? runDeep(depth - 1, task) : task.call();
    }

    /** Each of the threads of a pool keeps the same number of pages in its value of a thread-local variable. */
    private static void fillThreadLocals() throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(THREADS);
        CyclicBarrier all = new CyclicBarrier(THREADS);
        List<Future<?>> tasks = new ArrayList<>();
        for (int thread = 0; thread < THREADS; thread++) {
            tasks.add(pool.submit(() -> {
                all.await();
                return runDeep(DEPTH, () -> {
                    for (int page = 0; page < COUNT / THREADS; page++) {
                        CONTEXT.get().pages.add(new Page());
                    }
                    return null;
                });
            }));
        }
        for (Future<?> task : tasks) {
            task.get();
        }
    }

    private static ExecutorService fillQueue() {
        ExecutorService pool = Executors.newFixedThreadPool(1);
        for (int task = 0; task < COUNT; task++) {
            pool.execute(new Task());
        }
        return pool;
    }

    private static void fillWeakMap() {
        for (int page = 0; page < COUNT; page++) {
            Page key = new Page();
            STATISTICS.put(key, new Statistics(key));
        }
    }

    private static void fillShutdownHooks() {
        for (int hook = 0; hook < COUNT / 10; hook++) {
            Runtime.getRuntime().addShutdownHook(new Thread() {
                final Page[] pages = {new Page(), new Page(), new Page(), new Page(), new Page(), new Page(), new Page(), new Page(), new Page(), new Page()};
            });
        }
    }

    /** Timers that are never cancelled: the thread of each waits for its tasks. */
    private static void fillTimers() {
        for (int timer = 0; timer < COUNT / 100; timer++) {
            Timer one = new Timer("timer", true);
            for (int task = 0; task < 100; task++) {
                Page page = new Page();
                one.schedule(new TimerTask() {
                    public void run() {
                        page.content[0]++;
                    }
                }, 3_600_000L + task);
            }
        }
    }

    /** Return the pool of threads whose queue retains the pages, null if there is none. */
    private static ExecutorService fill(String kind) throws Exception {
        switch (kind) {
            case "locals": fillThreadLocals(); return null;
            case "queue": return fillQueue();
            case "weak": fillWeakMap(); return null;
            case "timers": fillTimers(); return null;
            default: fillShutdownHooks(); return null;
        }
    }

    public static void main(String[] arguments) throws Exception {
        ExecutorService pool = runDeep(DEPTH, () -> fill(arguments[0]));
        System.gc();
        System.out.println("ready");
        if (pool != null) {
            pool.awaitTermination(Long.MAX_VALUE, TimeUnit.SECONDS);
        }
        Thread.sleep(Long.MAX_VALUE);
    }
}
