import java.net.URL;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import org.eclipse.jetty.server.handler.ContextHandlerCollection;
import org.eclipse.jetty.webapp.WebAppContext;

/** Jetty with a web application that is redeployed: the application's folder, how often, and how its class loader leaks. */
public class RedeployedJetty {
    public static void main(String[] words) throws Exception {
        Server server = new Server(0);
        ContextHandlerCollection contexts = new ContextHandlerCollection();
        server.setHandler(contexts);
        server.start();
        int port = ((ServerConnector) server.getConnectors()[0]).getLocalPort();
        for (int number = 0; number < Integer.parseInt(words[1]); number++) {
            WebAppContext application = new WebAppContext(words[0], "/app");
            contexts.addHandler(application);
            application.start();
            new URL("http://127.0.0.1:" + port + "/app/page?leak=" + words[2]).openStream().close();
            application.stop();
            contexts.removeHandler(application);
            application.destroy();
        }
        System.gc();
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3_600_000);
    }
}
