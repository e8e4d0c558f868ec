/** Threads that call the native code of jni_scoped.c, each a different number of times: LIBRARY THREADS. */
public class JniScoped {
    static native void work(Object it, int times, int first);

    public static void main(String[] words) throws Exception {
        System.load(words[0]);
        int threads = Integer.parseInt(words[1]);
        for (int number = 1; number < threads; number++) {
            int times = 10 * (number + 1);
            new Thread(() -> work(new Object(), times, 0)).start();
        }
        work(new Object(), 10, threads);
    }
}
