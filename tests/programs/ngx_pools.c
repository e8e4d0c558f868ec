/* A module of nginx that prints the worker's own pools, and has pools itself: it keeps SESSIONS pools in a list, whose first objects refer to
   their own pool as ngx_cycle_t does, and leaks LEAKED pools, each with one large allocation. On a request for a location with the directive
   "print_pools FILE", it writes lines to the file for each pool of the cycle, of a connection or of a request: "pool OWNER ADDRESS", then
   "block ADDRESS USED" for each block and "large ADDRESS" for each large allocation. Then the worker stops itself with SIGSTOP. */
#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>
#include <signal.h>
#include <stdio.h>

enum { SESSIONS = 60, LEAKED = 90, LARGE = 150000 };

typedef struct {
    ngx_str_t file;
} settings;

typedef struct session {
    struct session *next;
    ngx_pool_t *pool;
} session;

static session *sessions;

static void print_pool(FILE *out, const char *owner, ngx_pool_t *pool) {
    fprintf(out, "pool %s %p\n", owner, (void *)pool);
    for (ngx_pool_t *block = pool; block; block = block->d.next) fprintf(out, "block %p %zu\n", (void *)block, (size_t)(block->d.last - (u_char *)block));
    for (ngx_pool_large_t *large = pool->large; large; large = large->next)
        if (large->alloc) fprintf(out, "large %p\n", large->alloc);
}

static void print_connection(FILE *out, ngx_connection_t *connection) {
    ngx_http_request_t *request = connection->data;
    print_pool(out, "connection", connection->pool);
    if (request && request->signature == NGX_HTTP_MODULE && request->connection == connection) print_pool(out, "HTTP request", request->pool);
}

static void create_pools(FILE *out, ngx_log_t *log) {
    for (int number = 0; number < LEAKED + SESSIONS; number++) {
        ngx_pool_t *pool = ngx_create_pool(512, log);
        session *its = ngx_pcalloc(pool, sizeof *its);
        its->pool = pool;
        if (number < LEAKED) ngx_pcalloc(pool, LARGE);
        its->next = number < LEAKED ? NULL : sessions;
        sessions = number < LEAKED ? NULL : its;
        print_pool(out, "other owner", pool);
    }
}

static ngx_int_t handle(ngx_http_request_t *request);

static void *create(ngx_conf_t *conf) { return ngx_pcalloc(conf->pool, sizeof(settings)); }

static char *set(ngx_conf_t *conf, ngx_command_t *command, void *its) {
    ngx_http_core_loc_conf_t *location = ngx_http_conf_get_module_loc_conf(conf, ngx_http_core_module);
    location->handler = handle;
    return ngx_conf_set_str_slot(conf, command, its);
}

static ngx_command_t commands[] = {
    {ngx_string("print_pools"), NGX_HTTP_LOC_CONF | NGX_CONF_TAKE1, set, NGX_HTTP_LOC_CONF_OFFSET, offsetof(settings, file), NULL},
    ngx_null_command,
};
static ngx_http_module_t context = {NULL, NULL, NULL, NULL, NULL, NULL, create, NULL};
ngx_module_t ngx_http_pools_module = {NGX_MODULE_V1, &context, commands, NGX_HTTP_MODULE, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NGX_MODULE_V1_PADDING};

static ngx_int_t handle(ngx_http_request_t *request) {
    settings *its = ngx_http_get_module_loc_conf(request, ngx_http_pools_module);
    FILE *out = fopen((const char *)its->file.data, "w"); /* the strings of the configuration end with a null byte */
    if (!out) return NGX_HTTP_INTERNAL_SERVER_ERROR;
    print_pool(out, "cycle", ngx_cycle->pool);
    for (ngx_uint_t number = 0; number < ngx_cycle->connection_n; number++) {
        ngx_connection_t *connection = &ngx_cycle->connections[number];
        if (connection->fd != (ngx_socket_t)-1 && connection->pool) print_connection(out, connection);
    }
    create_pools(out, ngx_cycle->log);
    fclose(out);
    raise(SIGSTOP);
    return NGX_HTTP_NO_CONTENT;
}
