import java.io.IOException;
import java.lang.management.ManagementFactory;
import java.util.Timer;
import java.util.TimerTask;
import java.util.logging.Handler;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import javax.management.ObjectName;
import javax.servlet.http.HttpServlet;
import javax.servlet.http.HttpServletRequest;
import javax.servlet.http.HttpServletResponse;

/** A servlet whose class loader stays when it is redeployed, for the reason that the request names. */
public class RedeployedLeaks extends HttpServlet {
    static final byte[] CATALOG = new byte[500_000];
    static final ThreadLocal<Context> CONTEXT = new ThreadLocal<>();

    static class Context {
        final String user = "user";
    }

    static class Audit extends Handler {
        @Override
        public void publish(LogRecord record) {}

        @Override
        public void flush() {}

        @Override
        public void close() {}
    }

    static class Cleanup extends TimerTask {
        @Override
        public void run() {
            CATALOG[0]++;
        }
    }

    public interface StatisticsMBean {
        int getCount();
    }

    public static class Statistics implements StatisticsMBean {
        @Override
        public int getCount() {
            return CATALOG.length;
        }
    }

    @Override
    protected void doGet(HttpServletRequest request, HttpServletResponse response) throws IOException {
        switch (request.getParameter("leak")) {
            case "local":
                CONTEXT.set(new Context());
                break;
            case "handler":
                Logger.getLogger("").addHandler(new Audit());
                break;
            case "timer":
                new Timer("cleanup", true).schedule(new Cleanup(), 3_600_000);
                break;
            case "thread":
                Thread thread = new Thread(() -> sleep());
                thread.setDaemon(true);
                thread.start();
                break;
            default:
                register();
        }
        response.getWriter().println("hello");
    }

    private static void sleep() {
        try {
            Thread.sleep(3_600_000);
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
        }
    }

    private static void register() throws IOException {
        try {
            ObjectName name = new ObjectName("app:type=Statistics,id=" + System.nanoTime());
            ManagementFactory.getPlatformMBeanServer().registerMBean(new Statistics(), name);
        } catch (Exception error) {
            throw new IOException(error);
        }
    }
}
