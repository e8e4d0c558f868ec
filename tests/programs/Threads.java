/** Starts and ends many threads, lets the agent print what it still keeps of them, and sleeps. */
public class Threads {
    static native void report();

    public static void main(String[] words) throws Exception {
        System.load(words[0]);
        for (int i = 0; i < Integer.parseInt(words[1]); i++) {
            Thread thread = new Thread(() -> { }, "worker");
            thread.start();
            thread.join();
        }
        Thread.sleep(300);
        report();
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3600000);
    }
}
