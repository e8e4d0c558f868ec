import java.io.IOException;
import javax.servlet.annotation.WebServlet;
import javax.servlet.http.HttpServlet;
import javax.servlet.http.HttpServletRequest;
import javax.servlet.http.HttpServletResponse;

/** A servlet that registers a hook with the JVM and never removes it, so that its class loader stays when it is redeployed. */
@WebServlet("/hello")
public class RedeployedServlet extends HttpServlet {
    static final byte[] CACHE = new byte[1_000_000];

    @Override
    protected void doGet(HttpServletRequest request, HttpServletResponse response) throws IOException {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> CACHE[0]++));
        response.getWriter().println("hello");
    }
}
