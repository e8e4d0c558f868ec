import java.io.IOException;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.HashMap;
import java.util.Map;

/**
 * Keeps COUNT mappings of files in FOLDER, each of 1 MiB. Prints "ready". Arguments: FOLDER, COUNT, number of files, and the class of the
 * mappings: "buffer" (MappedByteBuffer), "dropped" (the same, and the program drops them), "service" (the same, in an object that
 * implements AutoCloseable), "file" (the same, in one such object each) or "segment" (java.lang.foreign.MemorySegment, since Java 22).
 */
public class JavaMapped {
    static class Service implements AutoCloseable {
        final Object mapped;

        Service(Object mapped) {
            this.mapped = mapped;
        }

        public void close() {
        }
    }

    static Service service;
    static final int SIZE = 1 << 20;
    static final Map<String, Object> MAPPINGS = new HashMap<>();

    static Object buffer(FileChannel channel) throws IOException {
        MappedByteBuffer buffer = channel.map(FileChannel.MapMode.READ_WRITE, 0, SIZE);
        for (int at = 0; at < SIZE; at += 4096) {
            buffer.put(at, (byte) 1);
        }
        return buffer;
    }

    /** Uses reflection, because this program is compiled for an earlier version of Java. */
    static Object segment(FileChannel channel) throws IOException, ReflectiveOperationException {
        Class<?> type = Class.forName("java.lang.foreign.Arena");
        Object arena = type.getMethod("global").invoke(null);
        Class<?>[] types = {FileChannel.MapMode.class, long.class, long.class, type};
        Object segment = FileChannel.class.getMethod("map", types).invoke(channel, FileChannel.MapMode.READ_WRITE, 0L, (long) SIZE, arena);
        return Class.forName("java.lang.foreign.MemorySegment").getMethod("fill", byte.class).invoke(segment, (byte) 1);
    }

    public static void main(String[] words) throws Exception {
        for (int i = 0; i < Integer.parseInt(words[1]); i++) {
            Path file = Path.of(words[0], "data" + i % Integer.parseInt(words[2]));
            if (!Files.exists(file)) {
                Files.write(file, new byte[SIZE]);
            }
            try (FileChannel channel = FileChannel.open(file, StandardOpenOption.READ, StandardOpenOption.WRITE)) {
                MAPPINGS.put("part " + i, words[3].equals("segment") ? segment(channel) : buffer(channel));
            }
        }
        if (words[3].equals("service")) {
            service = new Service(new HashMap<>(MAPPINGS));
        }
        if (words[3].equals("file")) {
            MAPPINGS.replaceAll((name, one) -> new Service(one));
        }
        if (words[3].equals("dropped") || words[3].equals("service")) {
            MAPPINGS.clear();
        }
        System.out.println("ready");
        Thread.sleep(3_600_000);
    }
}
