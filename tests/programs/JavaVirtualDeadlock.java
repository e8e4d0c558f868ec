import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.AbstractQueuedSynchronizer;
import java.util.concurrent.locks.ReentrantLock;

/**
 * Virtual threads "left" and "right" wait for each other's locks, and a third one, "waiter", for a lock of a thread that sleeps. With the
 * word "pinned", there is no third thread, "left" waits inside a synchronized block, and "right" waits for this block's object. Both then
 * occupy their carriers. With the word "timed", nothing is deadlocked: "left" and a thread of the kernel call tryLock() with a timeout, and
 * "first" and "second" wait for gates that each other has locked and unlocked. With the word "platform", all of these are threads of the
 * kernel. For the words "monitors", "mixed" and "held" see runMonitors(). Prints "ready".
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

    /** A lock that nobody can lock again after one thread has unlocked it. Its field for the owner still has this thread. */
    static class Gate extends AbstractQueuedSynchronizer {
        protected boolean tryAcquire(int unused) {
            setExclusiveOwnerThread(Thread.currentThread());
            return compareAndSetState(0, 1);
        }

        protected boolean tryRelease(int unused) {
            setState(0);
            return true;
        }

        protected int tryAcquireShared(int unused) {
            return -1;
        }
    }

    static void takeForAWhile(ReentrantLock held, ReentrantLock wanted, CountDownLatch both) {
        held.lock();
        both.countDown();
        try {
            both.await();
            wanted.tryLock(1, TimeUnit.HOURS);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    static void pass(Gate own, Gate other, CountDownLatch both) {
        own.acquire(1);
        own.release(1);
        both.countDown();
        try {
            both.await();
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
        other.acquireShared(1);
    }

    static Thread start(String name, Runnable task, boolean isVirtual) throws ReflectiveOperationException {
        if (isVirtual) {
            return start(name, task);
        }
        Thread started = new Thread(task, name);
        started.start();
        return started;
    }

    static void runTimed(boolean isVirtual) throws Exception {
        ReentrantLock third = new ReentrantLock(), fourth = new ReentrantLock();
        CountDownLatch locks = new CountDownLatch(2), gates = new CountDownLatch(2);
        Gate one = new Gate(), other = new Gate();
        Thread[] some = {
            start("left", () -> takeForAWhile(FIRST, SECOND, BOTH), isVirtual),
            start("right", () -> take(SECOND, FIRST), isVirtual),
            start("timed", () -> takeForAWhile(third, fourth, locks), false),
            start("also timed", () -> takeForAWhile(fourth, third, locks), false),
            start("first", () -> pass(one, other, gates), isVirtual),
            start("second", () -> pass(other, one, gates), isVirtual),
        };
        while (!waits(some[1], FIRST) || !one.isQueued(some[5]) || !other.isQueued(some[4])) {
            Thread.sleep(1);
        }
        for (Thread thread : some) {
            while (thread.getState() != Thread.State.WAITING && thread.getState() != Thread.State.TIMED_WAITING) {
                Thread.sleep(1);
            }
        }
    }

    public static void main(String[] words) throws Exception {
        if (words.length > 0 && !words[0].equals("pinned")) {
            run(words[0]);
            System.out.println("ready");
            System.out.flush();
            Thread.sleep(3_600_000);
        }
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

    static void run(String kind) throws Exception {
        if (kind.equals("timed") || kind.equals("platform")) {
            runTimed(kind.equals("timed"));
        } else {
            runMonitors(kind);
        }
    }

    /**
     * "left" holds MONITOR and waits for OTHER, both of which are objects, or, with the word "mixed", for SECOND. "right" holds OTHER (SECOND)
     * and waits for MONITOR. With the word "held", "right" sleeps instead, so that nothing is deadlocked. With "mixed", "right" is a thread of
     * the kernel. With "monitors", "left" has waited in Object.wait() before.
     */
    static void runMonitors(String kind) throws Exception {
        boolean isMixed = kind.equals("mixed"), isHeld = kind.equals("held");
        Thread left = start("left", isMixed ? () -> takeInside(SECOND) : () -> takeOther(kind.equals("monitors")), true);
        Thread right = start("right", isMixed ? () -> takeMonitor(SECOND) : () -> takeMonitorInside(isHeld), !isMixed);
        while (isMixed ? !waits(left, SECOND) : left.getState() != Thread.State.BLOCKED) {
            Thread.sleep(1);
        }
        while (right.getState() != (isHeld ? Thread.State.TIMED_WAITING : Thread.State.BLOCKED)) {
            Thread.sleep(1);
        }
    }

    static final Object OTHER = new Object();

    static void takeOther(boolean hasWaited) {
        synchronized (MONITOR) {
            if (hasWaited) {
                waitShortly();
            }
            await();
            synchronized (OTHER) {
                BOTH.countDown();
            }
        }
    }

    static void waitShortly() {
        try {
            MONITOR.wait(1);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    static void takeMonitorInside(boolean sleeps) {
        synchronized (OTHER) {
            await();
            if (sleeps) {
                sleep();
            }
            synchronized (MONITOR) {
                BOTH.countDown();
            }
        }
    }

    static void sleep() {
        try {
            Thread.sleep(3_600_000);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }
}
