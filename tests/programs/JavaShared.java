import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/**
 * The first argument selects what the program does. "documents": keeps 40 documents of 1 MB, to each of which collections of two classes
 * refer. "executor": fills the queue of an executor that only its threads refer to. "strings": interns 200,000 strings, and keeps none of
 * them. "tasks": schedules 150,000 tasks. "array": two static variables refer to an array with 40 documents. Prints "ready".
 */
public class JavaShared {
    static class Document {
        final byte[] text = new byte[1_000_000];
    }

    static class Library {
        static final Map<Integer, Document> BY_NAME = new HashMap<>();
        static Document[] all;
    }

    static class Session {
        static final List<Document> OPEN = new ArrayList<>();
        static Document[] all;
    }

    static class Task implements Runnable {
        final long number;

        Task(long number) {
            this.number = number;
        }

        public void run() {
            System.out.println(number);
        }
    }

    static void fill() throws InterruptedException {
        ExecutorService executor = Executors.newFixedThreadPool(1);
        CountDownLatch started = new CountDownLatch(1);
        executor.execute(() -> {
            started.countDown();
            sleep();
        });
        started.await();
        for (int task = 0; task < 300; task++) {
            byte[] data = new byte[100_000];
            executor.execute(() -> System.out.println(data.length));
        }
    }

    static void sleep() {
        try {
            Thread.sleep(3_600_000);
        } catch (InterruptedException error) {
            throw new IllegalStateException(error);
        }
    }

    public static void main(String[] words) throws InterruptedException {
        if (words[0].equals("documents")) {
            for (int name = 0; name < 40; name++) {
                Document document = new Document();
                Library.BY_NAME.put(name, document);
                Session.OPEN.add(document);
            }
        } else if (words[0].equals("executor")) {
            fill();
        } else if (words[0].equals("array")) {
            Library.all = new Document[40];
            for (int number = 0; number < 40; number++) {
                Library.all[number] = new Document();
            }
            Session.all = Library.all;
        } else if (words[0].equals("tasks")) {
            ScheduledExecutorService executor = Executors.newScheduledThreadPool(1);
            for (int number = 0; number < 150_000; number++) {
                executor.schedule(new Task(number), 1, TimeUnit.DAYS);
            }
        } else {
            for (int number = 0; number < 200_000; number++) {
                ("number " + number).intern();
            }
        }
        System.out.println("ready");
        System.out.flush();
        sleep();
    }
}
