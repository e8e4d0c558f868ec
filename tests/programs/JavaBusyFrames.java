import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.IntUnaryOperator;

/** Two threads that never wait execute Java methods of every kind: interpreted, compiled, inlined, native, and those of lambdas. */
public class JavaBusyFrames {
    interface Shape {
        long area(int depth);
    }

    static class Square implements Shape {
        public long area(int depth) {
            return depth <= 0 ? 1 : small(depth - 1) + 1;
        }

        long small(int depth) {
            return tiny(this, depth) + 1;
        }
    }

    static class Circle extends Square {
        @Override
        public long area(int depth) {
            long below = super.area(depth);
            return below + 2;
        }
    }

    static long tiny(Shape shape, int depth) {
        return shape.area(depth) * 3;
    }

    static synchronized long locked(int number) {
        return number * 3L;
    }

    static int recurse(int depth) {
        return depth == 0 ? 0 : recurse(depth - 1) + depth;
    }

    static int thrown(int number) {
        try {
            if (number % 3 == 0) {
                throw new IllegalStateException("x" + number);
            }
            return number;
        } catch (IllegalStateException e) {
            return e.getMessage().length();
        }
    }

    public static long reflected(long number) {
        return number + 1;
    }

    static long shapes(int round) {
        Shape[] all = {new Square(), new Circle()};
        long sum = 0;
        for (int call = 0; call < 20; call++) {
            sum += tiny(all[call % 2], 6);
        }
        return sum;
    }

    static long texts(int round) {
        Map<String, List<Integer>> found = new HashMap<>();
        for (int number = 0; number < 30; number++) {
            found.computeIfAbsent("key" + number % 7, key -> new ArrayList<>()).add(number);
        }
        long[] numbers = new long[300];
        System.arraycopy(numbers, 0, numbers, 7, 200);
        return found.values().stream().mapToInt(List::size).sum() + numbers[3] + Thread.currentThread().getName().hashCode();
    }

    static long sorts(int round) {
        List<Integer> numbers = new ArrayList<>();
        for (int number = 0; number < 40; number++) {
            numbers.add(number * 7919 % 101);
        }
        numbers.sort((one, other) -> Integer.compare(one, other));
        IntUnaryOperator operator = number -> number * 2 + (int) System.nanoTime() % 2;
        return operator.applyAsInt(numbers.get(3));
    }

    static void work() {
        long sum = 0;
        for (int round = 0; ; round++) {
            sum += shapes(round) + texts(round) + sorts(round) + recurse(50) + thrown(round) + locked(round);
            try {
                sum += (Long) JavaBusyFrames.class.getMethod("reflected", long.class).invoke(null, sum);
            } catch (ReflectiveOperationException e) {
                throw new AssertionError(e);
            }
        }
    }

    public static void main(String[] words) throws Exception {
        for (int number = 0; number < 2; number++) {
            new Thread(JavaBusyFrames::work, "busy" + number).start();
        }
        System.out.println("ready");
        Thread.sleep(3_600_000);
    }
}
