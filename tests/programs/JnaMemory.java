import com.sun.jna.Memory;
import java.util.HashMap;
import java.util.Map;

/** Keeps COUNT blocks of 4,000 bytes in a map, or drops them. Arguments: COUNT kept|dropped. Prints "ready". */
public class JnaMemory {
    static final Map<Integer, Memory> SESSIONS = new HashMap<>();

    public static void main(String[] words) throws Exception {
        for (int number = 0; number < Integer.parseInt(words[0]); number++) {
            Memory block = new Memory(4000);
            block.setLong(0, number);
            if (words[1].equals("kept")) {
                SESSIONS.put(number, block);
            }
        }
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3_600_000);
    }
}
