import java.lang.ref.Cleaner;
import java.util.ArrayList;
import java.util.List;

/**
 * Makes objects that own blocks of malloc by their addresses, and keeps every 100th of them. No code frees the blocks of the others. With
 * the third argument "cleaner", a Cleaner is registered to free them. Arguments: the library, and the number of objects.
 */
public class DroppedCodecs {
    static final List<DroppedCodecs> KEPT = new ArrayList<>();
    static Cleaner cleaner;

    final State state = new State();

    static native long make();

    static native void free(long handle);

    static class State implements Runnable {
        final long handle = make();

        @Override
        public void run() {
            free(handle);
        }
    }

    DroppedCodecs() {
        if (cleaner != null) {
            cleaner.register(this, state);
        }
    }

    static void makeAll(int count) {
        for (int number = 0; number < count; number++) {
            DroppedCodecs one = new DroppedCodecs();
            if (number % 100 == 0) {
                KEPT.add(one);
            }
        }
    }

    /** Overwrites former frames, so that no stale word refers to the objects. */
    static int overwrite(int depth) {
        int a = depth, b = depth + 1, c = depth + 2, d = depth + 3;
        return depth == 0 ? 0 : overwrite(depth - 1) + a + b + c + d;
    }

    public static void main(String[] words) throws Exception {
        System.load(words[0]);
        if (words.length > 2) {
            cleaner = Cleaner.create();
        }
        makeAll(Integer.parseInt(words[1]));
        overwrite(100);
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3_600_000);
    }
}
