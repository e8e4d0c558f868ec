/** Loads the library lacking.c: java Lacking LIBRARY. */
public class Lacking {
    public static void main(String[] words) throws Exception {
        System.load(words[0]);
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(Long.MAX_VALUE);
    }
}
