import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.locks.LockSupport;

/**
 * N virtual threads that wait, so that their frames are in the Java heap: half of them in `deep`, called four times, half in `wide`. Each has
 * an object to which only its frames refer. N more have ended. It prints what Thread.getStackTrace says of each.
 */
public class JavaVirtualThreads {
    static class Held {
        final byte[] bytes = new byte[100];
        final int number;

        Held(int number) {
            this.number = number;
        }
    }

    static class Passed {
        int number;
    }

    static int sink;

    static void deep(int depth, Held held) {
        if (depth == 0) {
            LockSupport.park();
        } else {
            deep(depth - 1, held);
        }
        sink += held.number;
    }

    static void wide(Held held) {
        LockSupport.park();
        sink += held.number;
    }

    static final List<Object> THREADS = new ArrayList<>();

    static void start(Runnable work) throws Exception {
        THREADS.add(Thread.class.getMethod("startVirtualThread", Runnable.class).invoke(null, work));
    }

    public static void main(String[] words) throws Exception {
        int count = Integer.parseInt(words[0]);
        CountDownLatch ended = new CountDownLatch(count);
        for (int number = 0; number < count; number++) {
            int own = number;
            start(() -> {
                if (own % 2 == 0) {
                    deep(3, new Held(own));
                } else {
                    wide(new Held(own));
                }
            });
            start(() -> {
                new Passed().number = own;
                ended.countDown();
            });
        }
        ended.await();
        for (Object thread : THREADS) {
            while (((Thread) thread).getState() != Thread.State.WAITING && ((Thread) thread).isAlive()) {
                Thread.sleep(5);
            }
        }
        if (words.length > 1) {
            System.gc();
        }
        StringBuilder text = new StringBuilder();
        for (Object thread : THREADS) {
            if (((Thread) thread).isAlive()) {
                text.append("thread ").append(((Thread) thread).getId()).append('\n');
                for (StackTraceElement frame : ((Thread) thread).getStackTrace()) {
                    text.append(frame.getClassName()).append('.').append(frame.getMethodName()).append(' ');
                    text.append(frame.getFileName()).append(' ').append(frame.getLineNumber()).append('\n');
                }
            }
        }
        System.out.print(text.append("ready\n"));
        System.out.flush();
        Thread.sleep(3_600_000);
    }
}
