import java.lang.reflect.Field;
import java.nio.file.Files;
import java.nio.file.Paths;
import sun.misc.Unsafe;

/** Keeps 100 blocks of 100,000 bytes in an array. The last word of libjvm's data, which the JVM does not use, refers to a block with the same
 * addresses. Prints "ready", or "in use" if the word was not zero. */
public class JavaStaleVariable {
    static final long[] BLOCKS = new long[100];

    public static void main(String[] words) throws Exception {
        Field field = Unsafe.class.getDeclaredField("theUnsafe");
        field.setAccessible(true);
        Unsafe unsafe = (Unsafe) field.get(null);
        long table = unsafe.allocateMemory(8 * BLOCKS.length);
        for (int number = 0; number < BLOCKS.length; number++) {
            BLOCKS[number] = unsafe.allocateMemory(100_000);
            unsafe.setMemory(BLOCKS[number], 100_000, (byte) 1);
            unsafe.putLong(table + 8 * number, BLOCKS[number]);
        }
        long end = 0;
        for (String line : Files.readAllLines(Paths.get("/proc/self/maps"))) {
            String[] bounds = line.split(" ")[0].split("-");
            // The mapping after that of the file has the variables that are initially zero.
            boolean follows = end != 0 && Long.parseUnsignedLong(bounds[0], 16) == end;
            if (line.contains(" rw-p ") && (follows || line.endsWith("/libjvm.so"))) {
                end = Long.parseUnsignedLong(bounds[1], 16);
            }
        }
        boolean isUnused = unsafe.getLong(end - 8) == 0;
        if (isUnused) {
            unsafe.putLong(end - 8, table);
        }
        System.gc();
        System.out.println(isUnused ? "ready" : "in use");
        Thread.sleep(3_600_000);
    }
}
