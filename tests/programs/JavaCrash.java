import java.util.ArrayList;
import java.util.List;

/** Ends by a fault in native code, or, if the argument is "memory", because the Java heap is full. */
public class JavaCrash {
    static native long peek(long address);

    static long deeper(long address) {
        return peek(address) + 1;
    }

    public static void main(String[] words) throws Exception {
        if (words[0].equals("memory")) {
            List<byte[]> all = new ArrayList<>();
            while (true) {
                all.add(new byte[1 << 20]);
            }
        }
        System.load(words[0]);
        Thread thread = new Thread(() -> System.out.println(deeper(16)), "peeker");
        thread.start();
        thread.join();
    }
}
