import java.lang.ref.WeakReference;
import java.util.ArrayList;
import java.util.List;
import java.util.zip.Inflater;

/**
 * Keeps N objects of some classes in statics, and forgets as many of others. Then it prints "ready" and waits. With a second argument,
 * the objects that are kept survive a collection first.
 */
public class JavaHeap {
    /** A node of a list, with a long and an array. */
    static class Kept {
        final long number;
        final Kept next;
        final byte[] bytes = new byte[5];

        Kept(long number, Kept next) {
            this.number = number;
            this.next = next;
        }
    }

    /** Values of all types. `number` hides that of the superclass. */
    static class Values extends Kept {
        boolean truth = true;
        byte small = -8;
        char letter = 'ж';
        short medium = -1600;
        int number = -320000;
        long large = -6400000000L;
        float single = 1.5f;
        double precise = -2.25;
        String text = "text";
        Object[] things = {null, this, "thing"};

        static boolean theTruth = true;
        static byte theSmall = -9;
        static char theLetter = 'я';
        static short theMedium = -1700;
        static int theNumber = -330000;
        static long theLarge = -6500000000L;
        static float theSingle = 2.5f;
        static double thePrecise = -3.25;
        static Values theValues;

        Values(Kept next) {
            super(42, next);
        }
    }

    /** Like Kept, but nothing refers to the first object. */
    static class Forgotten extends Kept {
        Forgotten(long number, Kept next) {
            super(number, next);
        }
    }

    /** Only weak references refer to these. */
    static class Weak {
        int one, two, three;
    }

    static class Loader extends ClassLoader {
        Class<?> define(byte[] code) {
            return defineClass("JavaHeap$Script", code, 0, code.length);
        }
    }

    /** Each class loader loads it again. */
    public static class Script {
        public Script() {
        }

        static Object[] table = new Object[3];
        long value = 1;
    }

    static Kept kept;
    static final List<Object> ARRAYS = new ArrayList<>();
    static final List<WeakReference<Weak>> WEAK = new ArrayList<>();
    static final List<Inflater> INFLATERS = new ArrayList<>();
    static final List<Object> SCRIPTS = new ArrayList<>();

    static void keep(int count) {
        for (int i = 0; i < count; i++) {
            kept = new Kept(i, kept);
            ARRAYS.add(new short[i % 7]);
            ARRAYS.add(new Kept[i % 3][2]);
        }
        ARRAYS.add(new long[1 << 18]);
        ARRAYS.add(new double[100]);
        ARRAYS.add(new float[101]);
        ARRAYS.add(new boolean[103]);
        int[] many = new int[1500000];
        for (int i = 0; i < many.length; i++) many[i] = 3 * i;
        ARRAYS.add(many);
        Object[] things = new Object[1100000];
        things[things.length - 1] = many;
        ARRAYS.add(things);
        Values.theValues = new Values(kept);
    }

    static void forget(int count) {
        Kept last = null;
        for (int i = 0; i < count; i++) {
            last = new Forgotten(i, last);
            WEAK.add(new WeakReference<>(new Weak()));
        }
        if (last.number < 0) kept = last;
    }

    static void load(int count, boolean keep) throws Exception {
        java.io.ByteArrayOutputStream read = new java.io.ByteArrayOutputStream();
        try (java.io.InputStream file = JavaHeap.class.getResourceAsStream("JavaHeap$Script.class")) {
            for (int one = file.read(); one >= 0; one = file.read()) read.write(one);
        }
        byte[] code = read.toByteArray();
        for (int i = 0; i < count; i++) {
            Object made = new Loader().define(code).getDeclaredConstructor().newInstance();
            if (keep) SCRIPTS.add(made);
        }
    }

    public static void main(String[] words) throws Exception {
        int count = Integer.parseInt(words[0]);
        keep(count);
        for (int i = 0; i < 20; i++) INFLATERS.add(new Inflater());
        load(10, true);
        if (words.length > 1) System.gc();
        Thread other = new Thread(() -> {
            forget(count);
            try {
                load(15, false);
            } catch (Exception e) {
                throw new RuntimeException(e);
            }
            for (int i = 0; i < 30; i++) new Inflater();
        });
        other.start();
        other.join();
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3600_000);
    }
}
