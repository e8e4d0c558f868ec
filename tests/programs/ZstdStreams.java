import com.github.luben.zstd.Zstd;
import com.github.luben.zstd.ZstdInputStreamNoFinalizer;
import com.github.luben.zstd.ZstdOutputStreamNoFinalizer;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.util.ArrayList;
import java.util.List;

/** Opens COUNT streams of zstd, "in" or "out", and closes none. Keeps every tenth stream if the third argument is "some". */
public class ZstdStreams {
    static final List<Object> KEPT = new ArrayList<>();

    static Object open(boolean input, byte[] frame) throws Exception {
        if (input) {
            ZstdInputStreamNoFinalizer stream = new ZstdInputStreamNoFinalizer(new ByteArrayInputStream(frame));
            stream.read(new byte[1000]);
            return stream;
        }
        ZstdOutputStreamNoFinalizer stream = new ZstdOutputStreamNoFinalizer(new ByteArrayOutputStream());
        stream.write(new byte[1000]);
        stream.flush();
        return stream;
    }

    public static void main(String[] words) throws Exception {
        byte[] frame = Zstd.compress(new byte[300_000]);
        for (int number = 0; number < Integer.parseInt(words[0]); number++) {
            Object stream = open(words[1].equals("in"), frame);
            if (words[2].equals("some") && number % 10 == 0) {
                KEPT.add(stream);
            }
        }
        System.gc();
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3_600_000);
    }
}
