import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;

/** Keeps maps of strings and lists: at least the given number of objects, of about 53 bytes each. */
public class ManyObjects {
    static final int OF_MAP = 1000;
    static final List<HashMap<String, Object[]>> MAPS = new ArrayList<>();

    public static void main(String[] words) throws Exception {
        int objects = Integer.parseInt(words[0]);
        for (int count = 0; count < objects; ) {
            HashMap<String, Object[]> map = new HashMap<>();
            Object[] last = null;
            for (int at = 0; at < OF_MAP; at++) {
                // A key, its characters, a node of the map, a value, and the value's array and long
                Object[] value = {map, last, Long.valueOf(1000 + count), new byte[150]};
                map.put("key " + (count + at), value);
                last = value;
                count += 6;
            }
            MAPS.add(map);
        }
        System.gc();
        System.out.println("ready");
        System.in.read();
    }
}
