import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;

/**
 * Allocates 100,000 bytes in each arena, and keeps what a kind says: "segments", "arenas", or "global" segments. Arguments: the kind, and
 * the number of arenas. java.lang.foreign exists since Java 22; reflection lets older compilers compile this file.
 */
public class JavaArenas {
    static final List<Object> KEPT = new ArrayList<>();

    public static void main(String[] words) throws Exception {
        Class<?> arenas = Class.forName("java.lang.foreign.Arena");
        Class<?> segments = Class.forName("java.lang.foreign.MemorySegment");
        Method make = arenas.getMethod(words[0].equals("global") ? "global" : "ofShared");
        Method allocate = Class.forName("java.lang.foreign.SegmentAllocator").getMethod("allocate", long.class);
        Method fill = segments.getMethod("fill", byte.class);
        for (int number = 0; number < Integer.parseInt(words[1]); number++) {
            Object arena = make.invoke(null);
            Object segment = allocate.invoke(arena, 100_000L);
            fill.invoke(segment, (byte) 1);
            KEPT.add(words[0].equals("arenas") ? arena : segment);
        }
        System.gc();
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3_600_000);
    }
}
