import java.lang.management.ManagementFactory;
import java.lang.management.MemoryPoolMXBean;
import java.lang.management.MemoryType;

/** Prints the committed bytes of the JVM's pools outside of the Java heap, as lines "bytes name", and "ready". */
public class JavaPools {
    static String pools() {
        StringBuilder lines = new StringBuilder();
        for (MemoryPoolMXBean pool : ManagementFactory.getMemoryPoolMXBeans()) {
            if (pool.getType() == MemoryType.NON_HEAP) {
                lines.append(pool.getUsage().getCommitted()).append(' ').append(pool.getName()).append('\n');
            }
        }
        return lines.append("ready").toString();
    }

    public static void main(String[] words) throws Exception {
        System.err.println(pools()); // loads the classes that are needed to print
        System.out.println(pools());
        Thread.sleep(3_600_000);
    }
}
