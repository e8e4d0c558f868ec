import java.nio.ByteBuffer;
import org.HdrHistogram.Histogram;

/** Decompresses a histogram as often as the argument says. HdrHistogram 2.1.8 does not end the Inflaters, which are garbage then. */
public class DroppedHistograms {
    public static void main(String[] words) throws Exception {
        Histogram histogram = new Histogram(1);
        ByteBuffer buffer = ByteBuffer.allocate(64);
        for (int i = 0; i < Integer.parseInt(words[0]); i++) {
            buffer.clear();
            histogram.encodeIntoCompressedByteBuffer(buffer);
            buffer.flip();
            histogram = Histogram.decodeFromCompressedByteBuffer(buffer, 2);
        }
        System.out.println("ready");
        Thread.sleep(3600000);
    }
}
