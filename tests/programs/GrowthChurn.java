import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.zip.Deflater;

/** For each number on standard input, runs this number of threads to their end. Each thread makes and ends its own deflaters. */
public class GrowthChurn {
    static void work(int seed) {
        List<Deflater> held = new ArrayList<>();
        byte[] text = new byte[40000], out = new byte[60000];
        for (int i = 0; i < text.length; i++) text[i] = (byte) (i * seed);
        for (int i = 0; i < 12; i++) {
            Deflater one = new Deflater(1 + (seed + i) % 9);
            one.setInput(text);
            one.finish();
            while (!one.finished()) one.deflate(out);
            held.add(one);
        }
        for (Deflater one : held) one.end();
    }

    public static void main(String[] words) throws Exception {
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in));
        System.out.println("ready");
        for (String line; (line = asked.readLine()) != null; ) {
            List<Thread> threads = new ArrayList<>();
            for (int i = 0; i < Integer.parseInt(line); i++) {
                int seed = i + 1;
                threads.add(new Thread(() -> work(seed)));
            }
            for (Thread thread : threads) thread.start();
            for (Thread thread : threads) thread.join();
            System.gc();
            Thread.sleep(300);
            System.out.println("ready");
        }
    }
}
