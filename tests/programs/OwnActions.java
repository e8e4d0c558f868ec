import java.lang.ref.Cleaner;
import java.util.ArrayList;
import java.util.List;

/**
 * Registers COUNT objects of 2,000 bytes with a Cleaner and drops them. Each cleaning action refers to its own object, so that none of them
 * becomes garbage. COUNT other objects have actions that do not, and become garbage; every tenth of these is kept. The collector does not run.
 */
public class OwnActions {
    static final Cleaner CLEANER = Cleaner.create();
    static final List<Object> KEPT = new ArrayList<>();
    static int released;

    static class Page {
        final byte[] content = new byte[2000];

        Page() {
            CLEANER.register(this, () -> released += content.length);
        }
    }

    static class State implements Runnable {
        final byte[] content = new byte[100];

        @Override
        public void run() {
            released += content.length;
        }
    }

    static class Proper {
        final State state = new State();

        Proper() {
            CLEANER.register(this, state);
        }
    }

    static int clear(int depth) {
        long[] words = new long[64];
        return depth == 0 ? (int) words[0] : clear(depth - 1) + (int) words[1];
    }

    public static void main(String[] words) throws Exception {
        for (int number = 0; number < Integer.parseInt(words[0]); number++) {
            new Page();
            Proper proper = new Proper();
            if (number % 10 == 0) {
                KEPT.add(proper);
            }
        }
        released += clear(200);
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3_600_000);
    }
}
