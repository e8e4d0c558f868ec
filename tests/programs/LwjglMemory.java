import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import org.lwjgl.system.MemoryUtil;

/** Allocates COUNT buffers of 30,000 bytes with LWJGL, and keeps them. */
public class LwjglMemory {
    static final List<ByteBuffer> MESHES = new ArrayList<>();

    public static void main(String[] words) throws Exception {
        for (int number = 0; number < Integer.parseInt(words[0]); number++) {
            ByteBuffer mesh = MemoryUtil.memAlloc(30_000);
            for (int at = 0; at < mesh.capacity(); at += 1000) {
                mesh.put(at, (byte) 1);
            }
            MESHES.add(mesh);
        }
        System.gc();
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3_600_000);
    }
}
