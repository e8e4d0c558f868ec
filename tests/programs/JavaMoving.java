import java.util.HashMap;
import java.util.Map;

/**
 * Keeps N objects of each of some classes, and allocates without end, so that the collector moves objects all the time. The objects are
 * reached by different ways: by statics, by threads' stacks, by other objects that change. At any moment there are exactly N of each.
 */
public class JavaMoving {
    /** A node of a tree. */
    static class Node {
        final Node left, right;
        final byte[] data;

        Node(int count, int size) {
            left = count > 1 ? new Node((count - 1) / 2, size) : null;
            right = count > 2 ? new Node(count - 1 - (count - 1) / 2, size) : null;
            data = new byte[size];
        }
    }

    /** Many small objects. */
    static class Small extends Node {
        Small[] others = new Small[0];

        Small() {
            super(0, 0);
        }
    }

    /** Only the stack of a thread refers to each of them. */
    static class Local {
        long number;
    }

    /** Objects that soon become garbage. */
    static class Brief {
        final Object other;
        final byte[] data;

        Brief(Object other, int size) {
            this.other = other;
            data = new byte[size];
        }
    }

    static Node tree;
    static final Map<Integer, Small> SMALL = new HashMap<>();
    static volatile Object sink;

    static void churn(int seed) {
        Local mine = new Local();
        Object[] recent = new Object[1000];
        for (int i = 0; ; i++) {
            recent[i % recent.length] = new Brief(recent[(i + 7) % recent.length] == null ? mine : null, 16 + i % 500);
            if (i % 64 == 0) sink = new Brief(null, 300_000 % (i + 1));
            // The array of a Small is replaced, the object stays.
            Small one = SMALL.get((seed * 31 + i) % SMALL.size());
            one.others = new Small[] {one, SMALL.get(i % SMALL.size())};
            mine.number += one.others.length;
        }
    }

    public static void main(String[] words) throws Exception {
        int count = Integer.parseInt(words[0]), threads = Integer.parseInt(words[1]);
        tree = new Node(count, 40);
        for (int i = 0; i < count; i++) SMALL.put(i, new Small());
        for (int i = 0; i < threads; i++) {
            int seed = i;
            Thread one = new Thread(() -> churn(seed));
            one.setDaemon(true);
            one.start();
        }
        while (sink == null) Thread.sleep(10);
        System.out.println("ready");
        System.out.flush();
        while (true) {
            System.gc();
            Thread.sleep(1);
        }
    }
}
