import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ConcurrentHashMap;
import java.util.logging.Logger;

/** Creates a logger for each of COUNT requests. Arguments: COUNT, and "util" (java.util.logging) or "own" (a registry of the program). */
public class JavaLoggers {
    static class Request {
        final Logger logger;

        Request(int number) {
            logger = Logger.getLogger("shop.request." + number);
        }
    }

    static class Category {
        final String name;
        final List<Object> appenders = new ArrayList<>();

        Category(String name) {
            this.name = name;
            appenders.add(name);
        }
    }

    static class Registry {
        final ConcurrentHashMap<String, Category> categories = new ConcurrentHashMap<>();
    }

    static final List<Request> REQUESTS = new ArrayList<>();
    static final Registry REGISTRY = new Registry();

    public static void main(String[] words) throws InterruptedException {
        for (int i = 0; i < Integer.parseInt(words[0]); i++) {
            if (words[1].equals("util")) {
                REQUESTS.add(new Request(i));
            } else {
                REGISTRY.categories.computeIfAbsent("shop.request." + i, Category::new);
            }
        }
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3_600_000);
    }
}
