import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.util.concurrent.FastThreadLocal;
import io.netty.util.concurrent.FastThreadLocalThread;
import java.util.ArrayList;
import java.util.List;

/** Keeps COUNT direct buffers of 60,000 bytes in a FastThreadLocal of one thread, which is named codec-7. */
public class NettyLocals {
    static final FastThreadLocal<List<ByteBuf>> SCRATCH = new FastThreadLocal<List<ByteBuf>>() {
        @Override
        protected List<ByteBuf> initialValue() {
            return new ArrayList<>();
        }
    };

    static void fill(int count) {
        for (int number = 0; number < count; number++) {
            SCRATCH.get().add(Unpooled.directBuffer(60_000).writeZero(60_000));
        }
        System.gc();
        System.out.println("ready");
        System.out.flush();
        try {
            Thread.sleep(3_600_000);
        } catch (InterruptedException stopped) {
            Thread.currentThread().interrupt();
        }
    }

    public static void main(String[] words) throws Exception {
        int count = Integer.parseInt(words[0]);
        Thread thread = new FastThreadLocalThread(() -> fill(count), "codec-7");
        thread.start();
        thread.join();
    }
}
