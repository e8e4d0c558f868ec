import java.io.ByteArrayOutputStream;
import java.io.InputStream;
import java.util.ArrayList;
import java.util.List;

/** Loads a class with each of N class loaders, which it keeps. Arguments: N, and how many more for each line of input. */
public class ClassLoaders {
    static final List<Class<?>> KEPT = new ArrayList<>();

    static class Loader extends ClassLoader {
        Class<?> define(byte[] code) {
            return defineClass("ClassLoaders$Script", code, 0, code.length);
        }
    }

    /** The class that is loaded. */
    static class Script {
        int a(int x) { return x + 1; }
        int b(int x) { return x * 3 + a(x); }
        int c(int x) { return x - 5 + b(x); }
        String d(int x) { return "script " + a(x) + b(x) + c(x); }
    }

    static void load(byte[] code, int count) throws Exception {
        for (int i = 0; i < count; i++) {
            Class<?> made = new Loader().define(code);
            made.getDeclaredConstructor();
            KEPT.add(made);
        }
    }

    public static void main(String[] words) throws Exception {
        ByteArrayOutputStream code = new ByteArrayOutputStream();
        try (InputStream file = ClassLoaders.class.getResourceAsStream("ClassLoaders$Script.class")) {
            file.transferTo(code);
        }
        load(code.toByteArray(), Integer.parseInt(words[0]));
        System.out.println("ready");
        while (System.in.read() >= 0) {
            load(code.toByteArray(), Integer.parseInt(words[1]));
            System.out.println("ready");
        }
        Thread.sleep(600_000);
    }
}
