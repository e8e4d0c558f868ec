import java.lang.reflect.Method;
import java.util.ArrayList;
import java.util.List;

/**
 * Allocates 100,000 bytes in each arena, and keeps what a kind says: "segments", "arenas", or "global" segments. Any other kind,
 * such as "ofConfined", is the name of the method that makes the arenas; then nothing is kept. Arguments: the kind, and the number of
 * arenas. java.lang.foreign exists since Java 22; reflection lets older compilers compile this file.
 */
public class JavaArenas {
    static final List<Object> KEPT = new ArrayList<>();

    /** Overwrites former frames, so that no stale word refers to the arenas. */
    static int overwrite(int depth) {
        int a = depth, b = depth + 1, c = depth + 2, d = depth + 3;
        return depth == 0 ? 0 : overwrite(depth - 1) + a + b + c + d;
    }

    static void allocate(String kind, int count) throws Exception {
        Class<?> arenas = Class.forName("java.lang.foreign.Arena");
        Class<?> segments = Class.forName("java.lang.foreign.MemorySegment");
        Method make = arenas.getMethod(kind.equals("segments") || kind.equals("arenas") ? "ofShared" : kind);
        Method allocate = Class.forName("java.lang.foreign.SegmentAllocator").getMethod("allocate", long.class);
        Method fill = segments.getMethod("fill", byte.class);
        for (int number = 0; number < count; number++) {
            Object arena = make.invoke(null);
            Object segment = allocate.invoke(arena, 100_000L);
            fill.invoke(segment, (byte) 1);
            if (!kind.startsWith("of")) {
                KEPT.add(kind.equals("arenas") ? arena : segment);
            }
        }
    }

    public static void main(String[] words) throws Exception {
        allocate(words[0], Integer.parseInt(words[1]));
        overwrite(100);
        if (!KEPT.isEmpty()) {
            System.gc();
        }
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3_600_000);
    }
}
