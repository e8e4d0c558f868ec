import java.util.concurrent.CountDownLatch;
import java.util.concurrent.locks.LockSupport;
import java.util.concurrent.locks.ReentrantLock;
import java.util.concurrent.locks.ReentrantReadWriteLock;

/**
 * Threads that hold and wait for locks of every kind. Arguments: calls before they wait, and whether threads deadlock. Prints "ready".
 */
public class JavaLocks {
    static final CountDownLatch NEVER = new CountDownLatch(1);
    static final Object FIXED = new Object();
    static final Object[] OBJECTS = new Object[9];
    static final ReentrantLock LOCK = new ReentrantLock();
    static final ReentrantReadWriteLock READ_WRITE = new ReentrantReadWriteLock();
    static volatile int sink;

    static void rest(boolean stop) {
        if (stop) {
            LockSupport.park(NEVER);
            rest(true);
        }
        sink++;
    }

    static synchronized void ofClass(boolean stop) {
        rest(stop);
    }

    static void fixed(boolean stop) {
        synchronized (FIXED) {
            ofClass(stop);
        }
    }

    static void nested(Object first, Object second, boolean stop) {
        synchronized (first) {
            inner(second, stop);
            synchronized (second) {
                synchronized (first) {
                    fixed(stop);
                }
            }
        }
    }

    static void inner(Object one, boolean stop) {
        synchronized (one) {
            sink++;
        }
    }

    /** The compiler removes the lock of an object that no other thread knows. */
    static int local(boolean stop) {
        StringBuffer text = new StringBuffer();
        synchronized (text) {
            rest(stop);
        }
        return text.length();
    }

    synchronized void ofThis(boolean stop) {
        nested(OBJECTS[0], OBJECTS[1], stop);
    }

    static void enter(Object one, boolean stop) {
        synchronized (one) {
            rest(stop);
        }
    }

    static void waitFor(Object one, boolean stop) throws InterruptedException {
        synchronized (one) {
            if (stop) {
                one.wait();
            }
        }
    }

    static void lock(ReentrantLock one, boolean stop) {
        one.lock();
        try {
            rest(stop);
        } finally {
            one.unlock();
        }
    }

    interface Action {
        void run(boolean stop) throws Exception;
    }

    static Thread start(String name, int calls, Action action) {
        Thread one = new Thread(() -> {
            try {
                for (int at = 0; at < calls; at++) {
                    action.run(false);
                }
                action.run(true);
            } catch (Exception e) {
                throw new AssertionError(e);
            }
        }, name);
        one.setDaemon(true);
        one.start();
        return one;
    }

    /** Waits until a thread waits. */
    static void await(Thread one) throws InterruptedException {
        for (int rounds = 0; rounds < 3; rounds++) {
            Thread.sleep(20);
            Thread.State state = one.getState();
            rounds = state == Thread.State.WAITING || state == Thread.State.BLOCKED ? rounds : 0;
        }
    }

    static void run(String name, int calls, Action action) throws InterruptedException {
        await(start(name, calls, action));
    }

    static void cross(Object first, Object second, CountDownLatch both) throws InterruptedException {
        synchronized (first) {
            both.countDown();
            both.await();
            synchronized (second) {
                sink++;
            }
        }
    }

    public static void main(String[] words) throws Exception {
        int calls = Integer.parseInt(words[0]);
        for (int at = 0; at < OBJECTS.length; at++) {
            OBJECTS[at] = new Object();
        }
        run("holder", calls, new JavaLocks()::ofThis);
        run("local", calls, JavaLocks::local);
        run("enters", 0, stop -> enter(OBJECTS[1], stop));
        run("enters class", 0, JavaLocks::ofClass);
        run("waits", calls, stop -> waitFor(OBJECTS[2], stop));
        run("owner", calls, stop -> lock(LOCK, stop));
        run("locks", 0, stop -> lock(LOCK, stop));
        run("writer", 0, stop -> {
            READ_WRITE.writeLock().lock();
            rest(stop);
        });
        run("reader", 0, stop -> READ_WRITE.readLock().lock());
        // Three threads with one stack, each with an object of its own
        for (int at = 3; at < 6; at++) {
            Object mine = OBJECTS[at];
            run("same", calls, stop -> enter(mine, stop));
        }
        if (words.length > 1) {
            CountDownLatch both = new CountDownLatch(2);
            Thread one = start("A", 0, stop -> cross(OBJECTS[6], OBJECTS[7], both));
            Thread other = start("B", 0, stop -> cross(OBJECTS[7], OBJECTS[6], both));
            ReentrantLock[] locks = {new ReentrantLock(), new ReentrantLock()};
            CountDownLatch all = new CountDownLatch(2);
            for (int at = 0; at < 2; at++) {
                ReentrantLock first = locks[at], second = locks[1 - at];
                run("lock " + at, 0, stop -> {
                    first.lock();
                    all.countDown();
                    all.await();
                    second.lock();
                });
            }
            await(one);
            await(other);
        }
        System.out.println("ready");
        System.in.read();
    }
}
