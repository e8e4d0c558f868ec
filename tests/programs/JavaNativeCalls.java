import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.Map;
import java.util.TreeMap;
import java.util.function.IntUnaryOperator;
import java.util.stream.IntStream;

/**
 * Calls a function of C from Java methods of every kind, once for each line of input, and says with which frames.
 * Arguments: the JNI library, calls before the first line is read.
 */
public class JavaNativeCalls {
    static final Map<String, Integer> STACKS = new TreeMap<>();
    static boolean says;
    static int sink;

    static native int probe(int bytes);

    static int call(int bytes) {
        if (says) note(new Throwable()); return probe(bytes);
    }

    static void note(Throwable here) {
        StringBuilder text = new StringBuilder();
        for (StackTraceElement frame : here.getStackTrace()) {
            text.append(frame.getClassName()).append('.').append(frame.getMethodName()).append(' ');
            text.append(frame.getFileName()).append(' ').append(frame.getLineNumber()).append('\n');
        }
        STACKS.merge(text.toString(), 1, Integer::sum);
    }

    interface Shape {
        int area(int depth);
    }

    static class Square implements Shape {
        public int area(int depth) {
            return depth == 0 ? call(48) : small(depth - 1) + 1;
        }

        int small(int depth) {
            return tiny(this, depth) + 1;
        }
    }

    static class Circle extends Square {
        @Override
        public int area(int depth) {
            int below = super.area(depth);
            return below + 2;
        }
    }

    static int tiny(Shape shape, int depth) {
        return shape.area(depth) * 3;
    }

    static int recurse(int depth) {
        if (depth == 0) {
            return call(56);
        }
        return recurse(depth - 1) +
            depth;
    }

    public static int reflected(int number) {
        synchronized (STACKS) {
            return call(64) + number;
        }
    }

    static void round() throws Exception {
        Shape[] all = {new Square(), new Circle()};
        for (int depth = 0; depth < 4; depth++) {
            sink += tiny(all[depth % 2], depth);
        }
        sink += recurse(40);
        IntUnaryOperator operator = number -> number == 2 ? call(72) : number;
        sink += IntStream.range(0, 4).map(operator).sum();
        sink += (int) JavaNativeCalls.class.getMethod("reflected", int.class).invoke(null, 3);
    }

    public static void main(String[] words) throws Exception {
        System.load(words[0]);
        for (int calls = Integer.parseInt(words[1]); calls > 0; calls--) {
            round();
        }
        says = true;
        round();
        STACKS.clear();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        System.out.print("ready\n");
        System.out.flush();
        while (input.readLine() != null) {
            System.gc();  // changes the data that the JVM has about classes
            round();
            StringBuilder text = new StringBuilder();
            STACKS.forEach((stack, count) -> text.append("calls ").append(count).append('\n').append(stack));
            System.out.print(text.append("done\n"));
            System.out.flush();
        }
    }
}
