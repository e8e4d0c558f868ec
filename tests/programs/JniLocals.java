/**
 * Two threads call native methods that make local references to N objects. Arguments: LIBRARY N. One method returns, and its objects are
 * garbage. The other one prints "ready" and does not return. Only its local references keep its objects alive.
 */
public class JniLocals {
    static class Dropped {
        int number;
    }

    static class Held {
        int number;
    }

    static native void drop(Object[] objects);

    static native void hold(Object[] objects);

    public static void main(String[] words) throws Exception {
        System.load(words[0]);
        int count = Integer.parseInt(words[1]);
        Thread other = new Thread(() -> {
            Object[] dropped = new Object[count];
            for (int i = 0; i < count; i++) dropped[i] = new Dropped();
            drop(dropped);
            java.util.Arrays.fill(dropped, null);
            try {
                Thread.sleep(3600_000);
            } catch (InterruptedException e) {
                return;
            }
        });
        other.setDaemon(true);
        other.start();
        while (other.getState() != Thread.State.TIMED_WAITING) Thread.sleep(10);
        Object[] held = new Object[count];
        for (int i = 0; i < count; i++) held[i] = new Held();
        hold(held);
    }
}
