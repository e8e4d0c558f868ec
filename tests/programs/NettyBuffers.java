import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufAllocator;
import io.netty.buffer.PooledByteBufAllocator;
import io.netty.buffer.UnpooledByteBufAllocator;
import java.util.ArrayDeque;
import java.util.Deque;

/** Keeps COUNT direct buffers of Netty in a queue, and does not release them. With a third argument, drops them instead.
 * Arguments: COUNT pooled|unpooled [dropped]. Prints "ready". */
public class NettyBuffers {
    static final int SIZE = 60_000;
    static final Deque<ByteBuf> QUEUE = new ArrayDeque<>();

    public static void main(String[] words) throws Exception {
        ByteBufAllocator allocator = words[1].equals("pooled") ? PooledByteBufAllocator.DEFAULT : UnpooledByteBufAllocator.DEFAULT;
        for (int i = 0; i < Integer.parseInt(words[0]); i++) {
            ByteBuf buffer = allocator.directBuffer(SIZE);
            buffer.writeZero(SIZE);
            if (words.length < 3) {
                QUEUE.add(buffer);
            }
        }
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3600_000);
    }
}
