import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.lang.reflect.Method;

/**
 * Makes class loaders, objects whose lock two threads use, and exceptions, and drops all of them. The argument is their number. Each class
 * loader has one class, which is used through reflection. Therefore the virtual machine itself refers to these objects for some time.
 */
public class JavaDropped {
    static final Object GATE = new Object();
    static Lock given;
    static int sum;

    static class Loader extends ClassLoader {
        Loader() {
            super(JavaDropped.class.getClassLoader());
        }

        Class<?> define(byte[] code) {
            return defineClass(null, code, 0, code.length);
        }
    }

    public static class Made {
        public static Object make(Object one) {
            return new Object[] {one};
        }
    }

    static class Failure extends RuntimeException {
    }

    static class Lock {
        boolean done;

        synchronized void run() {
            done = true;
            notifyAll();
        }
    }

    static byte[] code() throws IOException {
        try (InputStream file = JavaDropped.class.getResourceAsStream("JavaDropped$Made.class")) {
            ByteArrayOutputStream code = new ByteArrayOutputStream();
            for (int one; (one = file.read()) >= 0;) {
                code.write(one);
            }
            return code.toByteArray();
        }
    }

    static void makeOne(byte[] code) throws Exception {
        Class<?> made = new Loader().define(code);
        Method make = made.getMethod("make", Object.class);
        for (int number = 0; number < 20; number++) { // after 15 calls, the virtual machine generates another class loader
            sum += make.invoke(null, made.getDeclaredConstructor().newInstance()).hashCode();
        }
        try {
            throw new Failure();
        } catch (Failure one) {
            sum += one.getStackTrace().length;
        }
        Lock lock = new Lock();
        synchronized (lock) {
            synchronized (GATE) {
                given = lock;
                GATE.notifyAll();
            }
            while (!lock.done) {
                lock.wait();
            }
        }
    }

    /** Waits for a lock of the other thread. */
    static Lock take() throws InterruptedException {
        synchronized (GATE) {
            while (given == null) {
                GATE.wait();
            }
            Lock taken = given;
            given = null;
            return taken;
        }
    }

    /** Uses the locks of the other thread. It does not end, because the virtual machine keeps ended threads for some time. */
    static void useLocks() {
        try {
            while (true) {
                take().run();
            }
        } catch (InterruptedException one) {
            throw new IllegalStateException(one);
        }
    }

    /** Overwrites former frames, so that no stale word refers to the objects. */
    static int overwrite(int depth) {
        int a = depth, b = depth + 1, c = depth + 2, d = depth + 3;
        return depth == 0 ? 0 : overwrite(depth - 1) + a + b + c + d;
    }

    public static void main(String[] words) throws Exception {
        byte[] code = code();
        Thread thread = new Thread(JavaDropped::useLocks);
        thread.setDaemon(true);
        thread.start();
        for (int number = 0; number < Integer.parseInt(words[0]); number++) {
            makeOne(code);
        }
        sum += overwrite(200);
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3_600_000);
    }
}
