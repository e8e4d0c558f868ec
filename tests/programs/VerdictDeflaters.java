import java.util.ArrayList;
import java.util.List;
import java.util.zip.Deflater;

/** Short-lived threads, each with its own deflaters: native memory that is not in the Java heap. */
public class VerdictDeflaters {
    static void work(int seed) {
        List<Deflater> held = new ArrayList<>();
        byte[] text = new byte[40000], out = new byte[60000];
        for (int i = 0; i < text.length; i++) text[i] = (byte) (i * seed);
        for (int i = 0; i < 24; i++) {
            Deflater one = new Deflater(1 + (seed + i) % 9);
            one.setInput(text);
            one.finish();
            while (!one.finished()) one.deflate(out);
            held.add(one);
        }
        for (Deflater one : held) one.end();
    }

    public static void main(String[] words) throws Exception {
        for (int round = 0; round < 4; round++) {
            List<Thread> threads = new ArrayList<>();
            for (int i = 0; i < 64; i++) {
                int seed = round * 64 + i + 1;
                threads.add(new Thread(() -> work(seed)));
            }
            for (Thread thread : threads) thread.start();
            for (Thread thread : threads) thread.join();
        }
        System.gc();
        Thread.sleep(1000);
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3600000);
    }
}
