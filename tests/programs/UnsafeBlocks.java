import java.lang.reflect.Field;
import sun.misc.Unsafe;

/** Allocates COUNT blocks of 20,000 bytes with Unsafe.allocateMemory, and forgets their addresses. */
public class UnsafeBlocks {
    public static void main(String[] words) throws Exception {
        Field field = Unsafe.class.getDeclaredField("theUnsafe");
        field.setAccessible(true);
        Unsafe unsafe = (Unsafe) field.get(null);
        for (int number = 0; number < Integer.parseInt(words[0]); number++) {
            unsafe.setMemory(unsafe.allocateMemory(20_000), 20_000, (byte) 7);
        }
        System.gc();
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3_600_000);
    }
}
