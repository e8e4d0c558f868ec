import java.net.URL;
import org.apache.catalina.Context;
import org.apache.catalina.startup.Tomcat;

/** Tomcat with a web application that is redeployed: the application's folder, Tomcat's folder, and how often. */
public class RedeployedApplication {
    public static void main(String[] words) throws Exception {
        Tomcat tomcat = new Tomcat();
        tomcat.setBaseDir(words[1]);
        tomcat.setPort(0);
        tomcat.getConnector().setProperty("address", "127.0.0.1");
        tomcat.start();
        for (int number = 0; number < Integer.parseInt(words[2]); number++) {
            Context context = tomcat.addWebapp("/app", words[0]);
            new URL("http://127.0.0.1:" + tomcat.getConnector().getLocalPort() + "/app/hello").openStream().close();
            context.stop();
            tomcat.getHost().removeChild(context);
        }
        System.gc();
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3_600_000);
    }
}
