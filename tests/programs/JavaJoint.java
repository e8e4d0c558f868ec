import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

/** Two static variables of a class refer to the same sessions. The argument is their number. */
public class JavaJoint {
    static class Session {
        final int number;
        final byte[] data = new byte[500];

        Session(int number) {
            this.number = number;
        }
    }

    static final Map<Integer, Session> BY_ID = new HashMap<>();
    static final List<Session> RECENT = new ArrayList<>();

    static void add(int number) {
        Session session = new Session(number);
        BY_ID.put(number, session);
        RECENT.add(session);
    }

    static void fill(int count) {
        for (int number = 0; number < count; number++) {
            add(number);
        }
    }

    public static void main(String[] arguments) throws Exception {
        fill(Integer.parseInt(arguments[0]));
        System.gc();
        System.out.println("ready");
        Thread.sleep(3600_000);
    }
}
