import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/** Each of COUNT tasks in four threads leaves a value of 4 KiB in a thread-local variable of its own. Prints "ready". */
public class ThreadContexts {
    static class Context {
        byte[] buffer = new byte[4096];
    }

    static class Task {
        final ThreadLocal<Context> context = new ThreadLocal<>();
    }

    static final List<Task> TASKS = new ArrayList<>();

    public static void main(String[] words) throws Exception {
        ExecutorService pool = Executors.newFixedThreadPool(4);
        for (int i = 0; i < Integer.parseInt(words[0]); i++) {
            Task task = new Task();
            TASKS.add(task);
            pool.submit(() -> task.context.set(new Context())).get();
        }
        System.out.println("ready");
        Thread.sleep(3_600_000);
    }
}
