import java.util.Arrays;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.locks.LockSupport;
import java.util.function.IntUnaryOperator;

/** Threads that wait in Java methods of every kind. Prints their stacks from Thread.getAllStackTraces. Argument: calls before they wait. */
public class JavaFrames {
    static final CountDownLatch NEVER = new CountDownLatch(1);
    static final Object MONITOR = new Object();
    static volatile boolean stops;
    static int sink;

    interface Shape {
        int area(int depth, boolean stop);
    }

    static class Square implements Shape {
        public int area(int depth, boolean stop) {
            return depth == 0 ? rest(stop) : small(depth - 1, stop) + 1;
        }

        int small(int depth, boolean stop) {
            return tiny(this, depth, stop) + 1;
        }
    }

    static class Circle extends Square {
        @Override
        public int area(int depth, boolean stop) {
            int below = super.area(depth, stop);
            return below + 2;
        }
    }

    static int tiny(Shape shape, int depth, boolean stop) {
        return shape.area(depth, stop) * 3;
    }

    static int rest(boolean stop) {
        if (stop) {
            LockSupport.park(NEVER);
            rest(true);
        }
        return ++sink;
    }

    static class Lazy {
        static int value;

        static {
            await();
        }
    }

    static void await() {
        try {
            NEVER.await();
        } catch (InterruptedException e) {
            throw new AssertionError(e);
        }
    }

    static int recurse(int depth) {
        if (depth == 0) {
            await();
            return 0;
        }
        return recurse(depth - 1) +
            depth;
    }

    public static void reflected(String text) throws Exception {
        synchronized (MONITOR) {
            while (true) {
                MONITOR.wait();
            }
        }
    }

    static synchronized void locked(String name) {
        await();
    }

    static void shapes(int calls) {
        Shape[] all = {new Square(), new Circle()};
        for (int call = 0; call < calls; call++) {
            tiny(all[call % 2], 4, false);
        }
        tiny(all[1], 5, true);
    }

    static void streams(int calls) {
        for (int call = 0; call <= calls; call++) {
            boolean stop = call == calls;
            IntUnaryOperator operator = number -> number == 2 ? rest(stop) : number;
            sink += java.util.stream.IntStream.range(0, 4).map(operator).sum();
        }
    }

    static void sorts(int calls) {
        for (int call = 0; call <= calls / 20; call++) {
            final boolean stop = call == calls / 20;
            List<String> words = Arrays.asList("c", "b", "a", "d");
            words.sort(new Comparator<String>() {
                @Override
                public int compare(String one, String other) {
                    return one.equals("a") ? one.compareTo(other) + 0 * rest(stop) : one.compareTo(other);
                }
            });
        }
    }

    static void start(String name, Runnable work) {
        Thread thread = new Thread(null, work, name, 64L << 20);
        thread.setDaemon(true);
        thread.start();
    }

    static void reflects() {
        try {
            JavaFrames.class.getMethod("reflected", String.class).invoke(null, "text");
        } catch (ReflectiveOperationException e) {
            throw new AssertionError(e);
        }
    }

    /** Waits until this number of the program's threads wait. */
    static void await(int threads) throws InterruptedException {
        for (int waiting = 0, rounds = 0; rounds < 3; rounds = waiting < threads ? 0 : rounds + 1) {
            Thread.sleep(50);
            waiting = 0;
            for (Thread one : Thread.getAllStackTraces().keySet()) {
                boolean ours = one.getThreadGroup() == Thread.currentThread().getThreadGroup() && one != Thread.currentThread();
                waiting += ours && (one.getState() == Thread.State.WAITING || one.getState() == Thread.State.BLOCKED) ? 1 : 0;
            }
        }
    }

    public static void main(String[] words) throws Exception {
        int calls = Integer.parseInt(words[0]);
        start("shapes of a thread with a long name", () -> shapes(calls));
        start("streams", () -> streams(calls));
        start("sorts \u00e4\u4e2d", () -> sorts(calls));
        start("deep", () -> recurse(1000));
        start("initializer", () -> sink = Lazy.value);
        start("reflection", JavaFrames::reflects);
        start("privileged", () -> java.security.AccessController.doPrivileged((java.security.PrivilegedAction<Void>) () -> {
            locked("one");
            return null;
        }));
        await(7);
        start("blocked", () -> locked("other"));
        await(8);
        StringBuilder text = new StringBuilder();
        for (Map.Entry<Thread, StackTraceElement[]> one : Thread.getAllStackTraces().entrySet()) {
            text.append("thread ").append(one.getKey().getName()).append('\n');
            for (StackTraceElement frame : one.getValue()) {
                text.append(frame.getClassName()).append('.').append(frame.getMethodName()).append(' ');
                text.append(frame.getFileName()).append(' ').append(frame.getLineNumber()).append('\n');
            }
        }
        System.out.write(text.append("ready\n").toString().getBytes("UTF-8"));
        System.out.flush();
        System.in.read();
    }
}
