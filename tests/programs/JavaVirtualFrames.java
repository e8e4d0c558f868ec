/** A virtual thread that slept in the innermost of 20 calls, so that most of its frames are in the Java heap, and never sleeps again. */
public class JavaVirtualFrames {
    static volatile long count;

    static void deep(int depth) {
        if (depth > 0) {
            deep(depth - 1);
            count++;
            return;
        }
        spin();
    }

    static void spin() {
        try {
            Thread.sleep(50);
        } catch (InterruptedException e) {
            throw new AssertionError(e);
        }
        while (true) {
            count++;
        }
    }

    public static void main(String[] words) throws Exception {
        Thread.class.getMethod("startVirtualThread", Runnable.class).invoke(null, (Runnable) () -> deep(20));
        while (count < 1000) {
            Thread.sleep(10);
        }
        System.out.println("ready");
        Thread.sleep(3_600_000);
    }
}
