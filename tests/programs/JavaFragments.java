import java.util.ArrayList;
import java.util.List;
import java.util.Random;

/** Fills the old generation with objects of many sizes, forgets two of three, and lets the collector free them in place. */
public class JavaFragments {
    static class Small {
        int one;
    }

    static class Large {
        long one, two, three, four;
        Object five;
    }

    static final List<Object> KEPT = new ArrayList<>();

    public static void main(String[] words) throws Exception {
        Random random = new Random(1);
        for (int i = 0; i < 200000; i++) {
            KEPT.add(random.nextBoolean() ? new Small() : new Large());
            if (i % 50 == 0) KEPT.add(new byte[random.nextInt(3000)]);
        }
        for (int i = 0; i < KEPT.size(); i++) if (random.nextInt(3) > 0) KEPT.set(i, null);
        for (int i = 0; i < 2; i++) {
            System.gc();
            Thread.sleep(1500);
        }
        for (int i = 0; i < 30000; i++) KEPT.add(new Small());
        System.out.println("ready");
        Thread.sleep(3600_000);
    }
}
