import io.undertow.Undertow;
import io.undertow.server.handlers.PathHandler;
import io.undertow.servlet.Servlets;
import io.undertow.servlet.api.DeploymentInfo;
import io.undertow.servlet.api.DeploymentManager;
import java.io.File;
import java.net.InetSocketAddress;
import java.net.URL;
import java.net.URLClassLoader;
import javax.servlet.Servlet;

/** Undertow with a servlet that is redeployed: the application's folder, how often, and how its class loader leaks. */
public class RedeployedUndertow {
    public static void main(String[] words) throws Exception {
        PathHandler paths = new PathHandler();
        Undertow server = Undertow.builder().addHttpListener(0, "127.0.0.1").setHandler(paths).build();
        server.start();
        int port = ((InetSocketAddress) server.getListenerInfo().get(0).getAddress()).getPort();
        URL[] classes = {new File(words[0], "WEB-INF/classes/").toURI().toURL()};
        for (int number = 0; number < Integer.parseInt(words[1]); number++) {
            URLClassLoader loader = new URLClassLoader(classes, RedeployedUndertow.class.getClassLoader());
            Class<? extends Servlet> servlet = loader.loadClass("RedeployedLeaks").asSubclass(Servlet.class);
            DeploymentInfo info = Servlets.deployment().setClassLoader(loader).setContextPath("/app").setDeploymentName("app");
            info.addServlet(Servlets.servlet("page", servlet).addMapping("/page"));
            DeploymentManager manager = Servlets.defaultContainer().addDeployment(info);
            manager.deploy();
            paths.addPrefixPath("/app", manager.start());
            new URL("http://127.0.0.1:" + port + "/app/page?leak=" + words[2]).openStream().close();
            paths.removePrefixPath("/app");
            manager.stop();
            manager.undeploy();
            Servlets.defaultContainer().removeDeployment(info);
            loader.close();
        }
        System.gc();
        System.out.println("ready");
        System.out.flush();
        Thread.sleep(3_600_000);
    }
}
