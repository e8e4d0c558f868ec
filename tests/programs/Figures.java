import java.lang.management.ManagementFactory;
import java.util.ArrayList;
import java.util.List;
import java.util.zip.Deflater;
import javax.management.MBeanServer;
import javax.management.ObjectName;

/** Keeps some memory of each kind, prints what jcmd would of the code cache, the heap and native memory, and waits. */
public class Figures {
    static final List<Object> kept = new ArrayList<>();

    static String ask(String operation, String... words) throws Exception {
        MBeanServer server = ManagementFactory.getPlatformMBeanServer();
        ObjectName name = new ObjectName("com.sun.management:type=DiagnosticCommand");
        Object[] values = words.length == 0 ? null : new Object[] {words};
        String[] types = words.length == 0 ? null : new String[] {String[].class.getName()};
        return (String) server.invoke(name, operation, values, types);
    }

    public static void main(String[] words) throws Exception {
        for (int i = 0; i < 3000; i++) kept.add(new byte[1000]);
        for (int i = 0; i < 20; i++) kept.add(new Deflater());
        Thread[] threads = new Thread[7];
        for (int i = 0; i < threads.length; i++) {
            threads[i] = new Thread(() -> {
                try {
                    Thread.sleep(3600000);
                } catch (InterruptedException e) {
                    return;
                }
            });
            threads[i].start();
        }
        String said = "";
        for (int round = 0; round < 2; round++) // round 1 loads classes and allocates; only the text of round 2 is used
            said = ask("compilerCodecache") + ask("gcHeapInfo") + ask("vmNativeMemory", "summary", "scale=b");
        System.out.println(said);
        System.out.println("ready");
        System.out.flush();
        threads[0].join();
    }
}
