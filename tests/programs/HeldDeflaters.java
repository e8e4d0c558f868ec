import java.util.ArrayList;
import java.util.List;
import java.util.zip.Deflater;

/**
 * Deflaters that are kept and never ended: native memory that only objects of the Java heap hold. COUNT ["local"]. With "local", a
 * thread-local variable of the main thread keeps them.
 */
public class HeldDeflaters {
    static final List<Deflater> held = new ArrayList<>();
    static final ThreadLocal<List<Deflater>> local = ThreadLocal.withInitial(ArrayList::new);

    public static void main(String[] words) throws Exception {
        byte[] out = new byte[1000];
        for (int i = 0; i < Integer.parseInt(words[0]); i++) {
            Deflater one = new Deflater();
            one.setInput(new byte[] {1, 2, 3});
            one.deflate(out);
            (words.length > 1 ? local.get() : held).add(one);
        }
        System.gc();
        Thread.sleep(500);
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3600000);
    }
}
