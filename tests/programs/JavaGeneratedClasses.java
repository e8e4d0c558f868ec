import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.lang.invoke.MethodHandles;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;

/**
 * Generates classes. Arguments: a kind, and the number of classes.
 * "loader": one class loader has all classes. "hidden": hidden classes. "dropped": each class loader has 100 classes, and is garbage.
 */
public class JavaGeneratedClasses {
    static final List<Object> KEPT = new ArrayList<>();

    static class Loader extends ClassLoader {
        final int number;

        Loader(int number) {
            super(JavaGeneratedClasses.class.getClassLoader());
            this.number = number;
        }

        Class<?> define(byte[] code) {
            return defineClass(null, code, 0, code.length);
        }
    }

    /** The class Made00000. */
    static byte[] template() throws Exception {
        try (InputStream file = JavaGeneratedClasses.class.getResourceAsStream("Made00000.class")) {
            ByteArrayOutputStream code = new ByteArrayOutputStream();
            for (int one; (one = file.read()) >= 0;) {
                code.write(one);
            }
            return code.toByteArray();
        }
    }

    static byte[] renamed(byte[] code, int number) {
        String text = new String(code, StandardCharsets.ISO_8859_1);
        return text.replace("Made00000", String.format("Made%05d", number)).getBytes(StandardCharsets.ISO_8859_1);
    }

    static void generate(String kind, int count) throws Exception {
        byte[] code = template();
        Loader loader = null;
        for (int number = 0; number < count; number++) {
            if (kind.equals("hidden")) {
                // MethodHandles.Lookup.defineHiddenClass exists since Java 15.
                Class<?> option = Class.forName("java.lang.invoke.MethodHandles$Lookup$ClassOption");
                Object none = java.lang.reflect.Array.newInstance(option, 0);
                Object lookup = MethodHandles.Lookup.class.getMethod("defineHiddenClass", byte[].class, boolean.class, none.getClass())
                    .invoke(MethodHandles.lookup(), code, false, none);
                KEPT.add(((MethodHandles.Lookup) lookup).lookupClass());
                continue;
            }
            if (loader == null || (kind.equals("dropped") && number % 100 == 0)) {
                loader = new Loader(number);
                if (kind.equals("loader")) {
                    KEPT.add(loader);
                }
            }
            loader.define(renamed(code, number));
        }
    }

    /** Overwrites former frames, so that no stale word refers to a class loader. */
    static int overwrite(int depth) {
        int a = depth, b = depth + 1, c = depth + 2, d = depth + 3;
        return depth == 0 ? 0 : overwrite(depth - 1) + a + b + c + d;
    }

    public static void main(String[] words) throws Exception {
        generate(words[0], Integer.parseInt(words[1]));
        overwrite(100);
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3_600_000);
    }
}

class Made00000 {
    static int sum(int first, int second) {
        int total = 0;
        for (int number = first; number < second; number++) {
            total += number * second ^ first;
        }
        return total;
    }

    static String text(String first, int second) {
        StringBuilder text = new StringBuilder(first);
        for (int number = 0; number < second; number++) {
            text.append(number).append(first);
        }
        return text.toString();
    }
}
