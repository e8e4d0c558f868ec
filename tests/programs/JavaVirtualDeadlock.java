import java.util.concurrent.CountDownLatch;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Virtual threads "left" and "right" wait for each other's locks, and a third one, "waiter", for a lock of a thread that sleeps. With the
 * word "pinned", there is no third thread, "left" waits inside a synchronized block, and "right" waits for this block's object. Both then
 * occupy their carriers. Prints "ready".
 */
public class JavaVirtualDeadlock {
    static final ReentrantLock FIRST = new ReentrantLock(), SECOND = new ReentrantLock(), BUSY = new ReentrantLock();
    static final Object MONITOR = new Object();
    static final CountDownLatch BOTH = new CountDownLatch(2);

    static void await() {
        BOTH.countDown();
        try {
            BOTH.await();
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    static void take(ReentrantLock held, ReentrantLock wanted) {
        held.lock();
        await();
        wanted.lock();
    }

    static void takeInside(ReentrantLock wanted) {
        synchronized (MONITOR) {
            await();
            wanted.lock();
        }
    }

    static void takeMonitor(ReentrantLock held) {
        held.lock();
        await();
        synchronized (MONITOR) {
            held.unlock();
        }
    }

    static boolean waits(Thread thread, ReentrantLock lock) {
        return lock.hasQueuedThread(thread) && thread.getState() == Thread.State.WAITING;
    }

    /** Uses reflection, because this program is compiled for an earlier version of Java. */
    static Thread start(String name, Runnable task) throws ReflectiveOperationException {
        Class<?> type = Class.forName("java.lang.Thread$Builder");
        Object builder = type.getMethod("name", String.class).invoke(Thread.class.getMethod("ofVirtual").invoke(null), name);
        return (Thread) type.getMethod("start", Runnable.class).invoke(builder, task);
    }

    public static void main(String[] words) throws Exception {
        boolean pinned = words.length > 0;
        BUSY.lock();
        Thread left = start("left", pinned ? () -> takeInside(SECOND) : () -> take(FIRST, SECOND));
        Thread right = start("right", pinned ? () -> takeMonitor(SECOND) : () -> take(SECOND, FIRST));
        Thread waiter = pinned ? null : start("waiter", () -> BUSY.lock());
        while (!waits(left, SECOND) || (pinned ? right.getState() != Thread.State.BLOCKED : !waits(right, FIRST) || !waits(waiter, BUSY))) {
            Thread.sleep(1);
        }
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3_600_000);
    }
}
