/* A module of Apache httpd that keeps data of each request. If the path begins with "/connection", the data is in the connection's pool.
   If it begins with "/both", the data is in this pool, and also in a list in the pool of the process that answers. Otherwise, it is in a list of sessions in the pool of the server's configuration. The answer is the number of requests so far. */
#include <httpd.h>
#include <http_config.h>
#include <http_protocol.h>
#include <apr_strings.h>

enum { BYTES = 4000 };

typedef struct session {
    struct session *next;
    const char *client, *path;
    char data[BYTES];
} session;

static session *sessions, *of_child;
static apr_pool_t *child;
static unsigned count;

static int answer(request_rec *request) {
    int of_connection = !strncmp(request->uri, "/connection", 11) || !strncmp(request->uri, "/both", 5);
    apr_pool_t *pool = of_connection ? request->connection->pool : request->server->process->pconf;
    session *made = apr_pcalloc(pool, sizeof *made);
    made->client = apr_pstrdup(pool, request->useragent_ip);
    made->path = apr_pstrdup(pool, request->uri);
    if (!of_connection) {
        made->next = sessions;
        sessions = made;
    }
    if (!strncmp(request->uri, "/both", 5)) {
        session *other = apr_pcalloc(child, sizeof *other);
        other->next = of_child;
        of_child = other;
    }
    ap_set_content_type(request, "text/plain");
    ap_rprintf(request, "%u\n", ++count);
    return OK;
}

static void begin(apr_pool_t *pool, server_rec *server) {
    (void)server;
    child = pool;
}

static void register_hooks(apr_pool_t *pool) {
    (void)pool;
    ap_hook_child_init(begin, NULL, NULL, APR_HOOK_MIDDLE);
    ap_hook_handler(answer, NULL, NULL, APR_HOOK_MIDDLE);
}

module AP_MODULE_DECLARE_DATA sessions_module = {STANDARD20_MODULE_STUFF, NULL, NULL, NULL, NULL, NULL, register_hooks, 0};
