/* A module of nginx that prints objects in the pools of its process, with their types. On a request for a location with the directive
   "print_objects FILE", it writes a line for each of them to the file: address and type. Then the process stops itself with SIGSTOP. */
#include <ngx_config.h>
#include <ngx_core.h>
#include <ngx_http.h>
#include <signal.h>
#include <stdio.h>

typedef struct {
    ngx_str_t file;
} settings;

static FILE *out;

static void print(const void *object, const char *type) {
    if (object) fprintf(out, "%p %s\n", object, type);
}

static void print_many(const ngx_array_t *array, const char *element) {
    if (array && array->nelts) fprintf(out, "%p %s[%zu]\n", array->elts, element, (size_t)array->nelts);
}

static void print_location(const ngx_http_core_loc_conf_t *location) { print(location, "struct ngx_http_core_loc_conf_s"); }

static void print_tree(const ngx_http_location_tree_node_t *node) {
    if (!node) return;
    print(node, "struct ngx_http_location_tree_node_s");
    print_location(node->exact);
    print_location(node->inclusive);
    print_tree(node->left);
    print_tree(node->right);
    print_tree(node->tree);
}

static void print_servers(ngx_http_request_t *request) {
    ngx_http_core_main_conf_t *main = ngx_http_get_module_main_conf(request, ngx_http_core_module);
    ngx_http_upstream_main_conf_t *upstreams = ngx_http_get_module_main_conf(request, ngx_http_upstream_module);
    ngx_http_core_srv_conf_t **servers = main->servers.elts;
    ngx_http_upstream_srv_conf_t **upstream = upstreams->upstreams.elts;
    print(main, "ngx_http_core_main_conf_t");
    print(upstreams, "ngx_http_upstream_main_conf_t");
    print_many(&main->servers, "ngx_http_core_srv_conf_t *");
    print_many(&upstreams->upstreams, "ngx_http_upstream_srv_conf_t *");
    for (ngx_uint_t number = 0; number < upstreams->upstreams.nelts; number++) {
        print(upstream[number], "struct ngx_http_upstream_srv_conf_s");
        print_many(upstream[number]->servers, "ngx_http_upstream_server_t");
    }
    for (ngx_uint_t number = 0; number < main->servers.nelts; number++) {
        ngx_http_core_loc_conf_t *location = servers[number]->ctx->loc_conf[ngx_http_core_module.ctx_index];
        print(servers[number], "ngx_http_core_srv_conf_t");
        print(servers[number]->ctx, "ngx_http_conf_ctx_t");
        print_location(location);
        print_tree(location->static_locations);
    }
}

static void print_request(ngx_connection_t *connection) {
    ngx_http_request_t *request = connection->data;
    print(connection->pool, "struct ngx_pool_s");
    if (!request || request->signature != NGX_HTTP_MODULE || request->connection != connection) return;
    print(request, "struct ngx_http_request_s");
    print(request->pool, "struct ngx_pool_s");
    print(request->http_connection, "ngx_http_connection_t");
    print(request->header_in, "struct ngx_buf_s");
    print(request->request_body, "ngx_http_request_body_t");
    print(request->upstream, "struct ngx_http_upstream_s");
    if (request->headers_in.headers.part.nelts)
        fprintf(out, "%p struct ngx_table_elt_s[%zu]\n", request->headers_in.headers.part.elts, (size_t)request->headers_in.headers.part.nelts);
}

static ngx_int_t handle(ngx_http_request_t *request);

static void *create(ngx_conf_t *conf) { return ngx_pcalloc(conf->pool, sizeof(settings)); }

static char *set(ngx_conf_t *conf, ngx_command_t *command, void *its) {
    ngx_http_core_loc_conf_t *location = ngx_http_conf_get_module_loc_conf(conf, ngx_http_core_module);
    location->handler = handle;
    return ngx_conf_set_str_slot(conf, command, its);
}

static ngx_command_t commands[] = {
    {ngx_string("print_objects"), NGX_HTTP_LOC_CONF | NGX_CONF_TAKE1, set, NGX_HTTP_LOC_CONF_OFFSET, offsetof(settings, file), NULL},
    ngx_null_command,
};
static ngx_http_module_t context = {NULL, NULL, NULL, NULL, NULL, NULL, create, NULL};
ngx_module_t ngx_http_objects_module = {NGX_MODULE_V1, &context, commands, NGX_HTTP_MODULE, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NGX_MODULE_V1_PADDING};

static ngx_int_t handle(ngx_http_request_t *request) {
    settings *its = ngx_http_get_module_loc_conf(request, ngx_http_objects_module);
    out = fopen((const char *)its->file.data, "w"); /* the strings of the configuration end with a null byte */
    if (!out) return NGX_HTTP_INTERNAL_SERVER_ERROR;
    ngx_cycle_t *cycle = (ngx_cycle_t *)ngx_cycle;
    print(cycle, "struct ngx_cycle_s");
    print(cycle->pool, "struct ngx_pool_s");
    print_many(&cycle->listening, "struct ngx_listening_s");
    print_many(&cycle->paths, "ngx_path_t *");
    fprintf(out, "%p ngx_module_t *[%zu]\n", (void *)cycle->modules, (size_t)cycle->modules_n);
    print_servers(request);
    for (ngx_uint_t number = 0; number < cycle->connection_n; number++) {
        ngx_connection_t *connection = &cycle->connections[number];
        if (connection->fd != (ngx_socket_t)-1 && connection->pool) print_request(connection);
    }
    fclose(out);
    raise(SIGSTOP);
    return NGX_HTTP_NO_CONTENT;
}
