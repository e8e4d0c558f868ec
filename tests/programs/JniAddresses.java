import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

/**
 * Keeps blocks of malloc's by their addresses in objects, forgets as many without freeing them, and waits: LIBRARY COUNT. What is kept stands
 * in objects that a collection has moved, in such as were made after it, by several threads, and in large arrays.
 */
public class JniAddresses {
    static native long make(int size, boolean kept);

    static native void ready();

    static class Handle {
        final long address;

        Handle(boolean kept) {
            address = make(64, kept);
        }
    }

    static class Connection extends Handle {
        final List<Handle> statements = new ArrayList<>();

        Connection(boolean kept) {
            super(kept);
            for (int i = 0; i < 3; i++) statements.add(new Handle(kept));
        }
    }

    static final List<Object> kept = new ArrayList<>();

    static synchronized void keep(Object one) {
        kept.add(one);
    }

    static long[] table(int length, boolean kept) {
        long[] made = new long[length];
        for (int i = 0; i < length; i += length / 8) made[i] = make(48, kept);
        return made;
    }

    static void fill(int count) {
        for (int i = 0; i < count; i++) {
            keep(new Connection(true));
            new Connection(false);
        }
        for (int length : new int[] {100, 5000, 300000}) { // the last is larger than half a region of G1's
            keep(table(length, true));
            table(length, false);
        }
    }

    static void run(Runnable work) throws Exception {
        Thread thread = new Thread(work);
        thread.start();
        thread.join();
    }

    public static void main(String[] words) throws Exception {
        System.load(words[0]);
        int count = Integer.parseInt(words[1]);
        run(() -> fill(count));
        for (int i = 0; i < 4; i++) System.gc();
        List<Thread> threads = new ArrayList<>();
        for (int number = 0; number < 4; number++) {
            Thread thread = new Thread(() -> {
                for (int i = 0; i < count / 10; i++) keep(new Connection(true));
                try {
                    Thread.sleep(3600000);
                } catch (InterruptedException e) {
                    return;
                }
            });
            thread.setDaemon(true);
            threads.add(thread);
            thread.start();
        }
        for (Thread thread : threads) while (thread.getState() != Thread.State.TIMED_WAITING) Thread.sleep(10);
        ready();
        Thread.sleep(3600000);
    }
}
