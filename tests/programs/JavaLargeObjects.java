import java.util.ArrayList;
import java.util.List;

/** Keeps 10 large arrays and forgets 30: each begins a region of the collectors that have regions. Then it prints "ready" and waits. */
public class JavaLargeObjects {
    static class Piece {
    }

    static final List<Piece[]> KEPT = new ArrayList<>();

    static void work() {
        for (int number = 0; number < 40; number++) {
            Piece[] pieces = new Piece[300_000];
            if (number % 4 == 0) {
                KEPT.add(pieces);
            }
        }
    }

    public static void main(String[] words) throws Exception {
        work();
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3_600_000);
    }
}
