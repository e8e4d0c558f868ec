import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;

/**
 * Loads and unloads classes for ever. Class Work00017 requests blocks of 1017 bytes, and no others.
 * Arguments: the JNI library, calls of each class.
 */
public class JavaChangingClasses {
    public static native int probe(int bytes);

    static class Loader extends ClassLoader {
        Class<?> define(byte[] code) {
            return defineClass(null, code, 0, code.length);
        }
    }

    /** The class Work00000, whose name is replaced. */
    static byte[] template() throws Exception {
        try (InputStream file = JavaChangingClasses.class.getResourceAsStream("Work00000.class")) {
            ByteArrayOutputStream code = new ByteArrayOutputStream();
            for (int one; (one = file.read()) >= 0;) {
                code.write(one);
            }
            return code.toByteArray();
        }
    }

    static byte[] renamed(byte[] code, int number) {
        String text = new String(code, StandardCharsets.ISO_8859_1);
        return text.replace("Work00000", String.format("Work%05d", number)).getBytes(StandardCharsets.ISO_8859_1);
    }

    public static void main(String[] words) throws Exception {
        System.load(words[0]);
        int calls = Integer.parseInt(words[1]);
        byte[] template = template();
        for (int round = 0;; round++) {
            int number = round % 500;
            Method work = new Loader().define(renamed(template, number)).getMethod("work", int.class, int.class);
            work.setAccessible(true);
            work.invoke(null, 1000 + number, calls);
            if (round % 20 == 0) {
                System.gc();
            }
            if (round == 40) {
                System.out.print("ready\n");
                System.out.flush();
            }
        }
    }
}

class Work00000 {
    static int sink;

    public static void work(int bytes, int calls) {
        for (int call = 0; call < calls; call++) {
            sink += deeper(bytes, call % 7);
        }
    }

    static int deeper(int bytes, int depth) {
        return depth == 0 ? JavaChangingClasses.probe(bytes) : deeper(bytes, depth - 1) + 1;
    }
}
