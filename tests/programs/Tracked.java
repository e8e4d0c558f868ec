import java.util.ArrayList;
import java.util.List;
import java.util.zip.Deflater;

/** Keeps some memory of each kind, and waits. */
public class Tracked {
    static final List<Object> kept = new ArrayList<>();

    public static void main(String[] words) throws Exception {
        for (int i = 0; i < 3000; i++) kept.add(new byte[1000]);
        for (int i = 0; i < 20; i++) kept.add(new Deflater());
        Thread[] threads = new Thread[7];
        for (int i = 0; i < threads.length; i++) {
            threads[i] = new Thread(() -> {
                try {
                    Thread.sleep(3600000);
                } catch (InterruptedException e) {
                    return;
                }
            });
            threads[i].start();
        }
        System.out.println("ready");
        System.out.flush();
        threads[0].join();
    }
}
