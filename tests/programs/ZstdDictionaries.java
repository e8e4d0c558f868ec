import com.github.luben.zstd.ZstdDictCompress;
import java.util.Arrays;
import java.util.HashMap;
import java.util.Map;
import java.util.Random;

/** Dictionaries of zstd that are never closed: a number. */
public class ZstdDictionaries {
    static final Map<String, ZstdDictCompress> BY_TENANT = new HashMap<>();

    public static void main(String[] words) throws Exception {
        byte[] text = new byte[100_000];
        new Random(1).nextBytes(text);
        for (int number = 0; number < Integer.parseInt(words[0]); number++) {
            BY_TENANT.put("tenant" + number, new ZstdDictCompress(Arrays.copyOf(text, 20_000 + number), 3));
        }
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3_600_000);
    }
}
