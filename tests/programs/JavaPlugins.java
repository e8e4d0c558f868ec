import java.io.InputStream;
import java.lang.reflect.Constructor;
import java.sql.Connection;
import java.sql.Driver;
import java.sql.DriverManager;
import java.sql.DriverPropertyInfo;
import java.util.Properties;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.logging.Logger;

/**
 * Loads a plugin with each of N class loaders, and drops the class loader. What the plugin did keeps it. Arguments: the plugin's class, N.
 */
public class JavaPlugins {
    static final ExecutorService POOL = Executors.newFixedThreadPool(1); // with two threads, their shares would depend on chance

    static class Loader extends ClassLoader {
        Loader() {
            super(JavaPlugins.class.getClassLoader());
        }

        @Override
        protected Class<?> loadClass(String name, boolean resolve) throws ClassNotFoundException {
            Class<?> known = findLoadedClass(name);
            if (known != null || !name.startsWith("Plugin")) {
                return known != null ? known : super.loadClass(name, resolve);
            }
            try (InputStream file = JavaPlugins.class.getResourceAsStream(name + ".class")) {
                byte[] code = file.readAllBytes();
                return defineClass(name, code, 0, code.length);
            } catch (Exception error) {
                throw new ClassNotFoundException(name, error);
            }
        }
    }

    public static void main(String[] words) throws Exception {
        for (int number = 0; number < Integer.parseInt(words[1]); number++) {
            Constructor<?> plugin = new Loader().loadClass(words[0]).getDeclaredConstructor();
            plugin.setAccessible(true);
            POOL.submit((Runnable) plugin.newInstance()).get();
        }
        System.gc();
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3_600_000);
    }
}

/** Sets a thread-local variable of a thread of the pool, and does not remove it. */
class PluginLocal implements Runnable {
    static final byte[] CACHE = new byte[1 << 18];
    static final ThreadLocal<PluginContext> CONTEXT = new ThreadLocal<>();

    public PluginLocal() {}

    public void run() {
        CONTEXT.set(new PluginContext());
    }
}

class PluginContext {
    String text = "context";
}

/** Registers a driver, and does not deregister it. */
class PluginDriver implements Driver, Runnable {
    static final byte[] CACHE = new byte[1 << 18];

    public PluginDriver() {}

    public void run() {
        try {
            DriverManager.registerDriver(this);
        } catch (java.sql.SQLException error) {
            throw new RuntimeException(error);
        }
    }

    public Connection connect(String url, Properties info) {
        return null;
    }

    public boolean acceptsURL(String url) {
        return false;
    }

    public DriverPropertyInfo[] getPropertyInfo(String url, Properties info) {
        return new DriverPropertyInfo[0];
    }

    public int getMajorVersion() {
        return 1;
    }

    public int getMinorVersion() {
        return 0;
    }

    public boolean jdbcCompliant() {
        return false;
    }

    public Logger getParentLogger() {
        return null;
    }
}

/** Adds a shutdown hook, and does not remove it. */
class PluginHook implements Runnable {
    static final byte[] CACHE = new byte[1 << 18];

    public PluginHook() {}

    public void run() {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> System.out.println(CACHE.length)));
    }
}

/** Starts a thread, and does not end it. */
class PluginThread implements Runnable {
    static final byte[] CACHE = new byte[1 << 18];

    public PluginThread() {}

    public void run() {
        Thread thread = new Thread(PluginThread::work, "plugin");
        thread.setDaemon(true);
        thread.start();
    }

    static void work() {
        try {
            Thread.sleep(3_600_000);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }
}

/** Is in a map of the JDK, which also has a soft reference to its class, as caches of class information do. The soft path is shorter. */
class PluginCached implements Runnable {
    static final byte[] CACHE = new byte[1 << 18];

    public PluginCached() {}

    public void run() {
        System.getProperties().put("class " + hashCode(), new java.lang.ref.SoftReference<>(PluginCached.class));
        System.getProperties().put("plugin " + hashCode(), new Object[] {new Object[] {this}});
    }
}
