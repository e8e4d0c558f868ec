import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.locks.*;
/**
 * COUNT threads with deep stacks wait for one lock, which the thread "holder" holds, or for elements of one queue. Prints "ready" when
 * all of them wait, and none for the lock of the queue. Arguments: COUNT, and "lock" or "queue".
 */
public class JavaBlocked {
    static final Object LOCK = new Object();
    static final LinkedBlockingQueue<Runnable> QUEUE = new LinkedBlockingQueue<>();

    static long deep(int depth, Runnable last) {
        if (depth == 0) {
            last.run();
            return 0;
        }
        return deep(depth - 1, last) + depth;
    }

    static void enter() {
        synchronized (LOCK) {
            LOCK.notify();
        }
    }

    static void take() {
        try {
            QUEUE.take().run();
        } catch (InterruptedException stop) {
            throw new IllegalStateException(stop);
        }
    }

    static void hold() {
        synchronized (LOCK) {
            take();
        }
    }

    static Thread start(String name, Runnable task) {
        Thread thread = new Thread(task, name);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    static void await(Thread thread, Thread.State state) throws InterruptedException {
        while (state == Thread.State.WAITING && !(LockSupport.getBlocker(thread) instanceof Condition) || thread.getState() != state) {
            Thread.sleep(10);
        }
    }

    public static void main(String[] words) throws InterruptedException {
        boolean lock = words[1].equals("lock");
        if (lock) {
            await(start("holder", JavaBlocked::hold), Thread.State.WAITING);
        }
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < Integer.parseInt(words[0]); i++) {
            threads.add(start("worker " + i, () -> deep(400, lock ? JavaBlocked::enter : JavaBlocked::take)));
        }
        for (Thread thread : threads) {
            await(thread, lock ? Thread.State.BLOCKED : Thread.State.WAITING);
        }
        System.out.println("ready");
        Thread.sleep(3_600_000);
    }
}
