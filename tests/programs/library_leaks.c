/* Leaks objects of libraries, as other programs leak them. Random numbers say how often. Between the leaks, it does other work.
   Its own malloc is called by the libraries. It prints each block that a leak allocated and did not free: "WAY ADDRESS BYTES" (usable),
   then "ready".
   usage: library_leaks SEED CONNECTION MOST [WAY…]: in these ways, or in up to 8 of all, each up to MOST times; CONNECTION: of a PostgreSQL
   server */
#define _GNU_SOURCE
#include <curl/curl.h>
#include <dirent.h>
#include <expat.h>
#include <json-c/json.h>
#include <libpq-fe.h>
#include <libxml/parser.h>
#include <libxml/xpath.h>
#include <netdb.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <regex.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>
#include <zlib.h>

#include "library_leaks.h"

/* Overwrites what earlier calls have left on the stack. */
static APART void wipe(void) {
    char deep[1 << 19];
    memset(deep, 0, sizeof deep);
    __asm__ volatile("" ::"r"(deep) : "memory");
}

/* ---- libxml2 -------------------------------------------------------------------------------------------------------------------------- */

static APART int order(char *text) {
    char *at = text + sprintf(text, "<?xml version='1.0'?><order id='%u' customer='%s'>", any(1, 1u << 30), word());
    for (unsigned left = any(1, 9); left; left--) {
        at += sprintf(at, "<item sku='%s' count='%u'", word(), any(1, 99));
        if (!any(0, 3)) at += sprintf(at, " gift='yes'");
        at += sprintf(at, ">%s</item>", any(0, 4) ? word() : "");
    }
    if (any(0, 1)) at += sprintf(at, "<!-- %s --><note>%s &amp; %s</note>", word(), word(), word());
    return (int)(at + sprintf(at, "</order>") - text);
}

static APART xmlDoc *document(void) {
    char text[4096];
    xmlDoc *read = xmlReadMemory(text, order(text), "order.xml", NULL, XML_PARSE_NONET);
    CHECK(read);
    return read;
}

static APART void xml_document(int forget) { /* no xmlFreeDoc */
    xmlDoc *read = document();
    if (!forget) xmlFreeDoc(read);
}

static APART void xml_property(int forget) { /* no xmlFree */
    xmlDoc *read = document();
    xmlChar *customer = xmlGetProp(xmlDocGetRootElement(read), (const xmlChar *)"customer");
    CHECK(customer);
    if (!forget) xmlFree(customer);
    xmlFreeDoc(read);
}

static APART void xml_xpath(int forget) { /* no xmlXPathFreeObject */
    xmlDoc *read = document();
    xmlXPathContext *context = xmlXPathNewContext(read);
    xmlXPathObject *found = xmlXPathEvalExpression((const xmlChar *)"//item[@count > 5]", context);
    CHECK(found);
    if (!forget) xmlXPathFreeObject(found);
    xmlXPathFreeContext(context);
    xmlFreeDoc(read);
}

/* ---- OpenSSL -------------------------------------------------------------------------------------------------------------------------- */

static SSL_CTX *server_context, *client_context;
static char certificate[4096]; /* PEM */

static APART void tls_prepare(void) {
    EVP_PKEY *key = NULL;
    EVP_PKEY_CTX *maker = EVP_PKEY_CTX_new_id(EVP_PKEY_EC, NULL);
    CHECK(EVP_PKEY_keygen_init(maker) == 1 && EVP_PKEY_CTX_set_ec_paramgen_curve_nid(maker, NID_X9_62_prime256v1) == 1);
    CHECK(EVP_PKEY_keygen(maker, &key) == 1);
    EVP_PKEY_CTX_free(maker);
    X509 *own = X509_new();
    X509_gmtime_adj(X509_getm_notBefore(own), 0);
    X509_gmtime_adj(X509_getm_notAfter(own), 86400);
    X509_NAME_add_entry_by_txt(X509_get_subject_name(own), "CN", MBSTRING_ASC, (const unsigned char *)"shop.example", -1, -1, 0);
    X509_set_issuer_name(own, X509_get_subject_name(own));
    CHECK(X509_set_pubkey(own, key) == 1 && X509_sign(own, key, EVP_sha256()));
    BIO *out = BIO_new(BIO_s_mem());
    PEM_write_bio_X509(out, own);
    BIO_read(out, certificate, sizeof certificate - 1);
    BIO_free(out);
    server_context = SSL_CTX_new(TLS_server_method());
    client_context = SSL_CTX_new(TLS_client_method());
    CHECK(SSL_CTX_use_certificate(server_context, own) == 1 && SSL_CTX_use_PrivateKey(server_context, key) == 1);
    X509_free(own);
    EVP_PKEY_free(key);
}

static APART X509 *read_certificate(void) {
    BIO *in = BIO_new_mem_buf(certificate, -1);
    X509 *read = PEM_read_bio_X509(in, NULL, NULL, NULL);
    BIO_free(in);
    CHECK(read);
    return read;
}

/* Both ends of a connection, after the handshake and some data. */
static APART void tls_connect(SSL **client, SSL **server) {
    BIO *near, *far;
    char data[1000];
    CHECK(BIO_new_bio_pair(&near, 0, &far, 0) == 1);
    *client = SSL_new(client_context), *server = SSL_new(server_context);
    SSL_set_bio(*client, near, near), SSL_set_bio(*server, far, far);
    SSL_set_connect_state(*client), SSL_set_accept_state(*server);
    if (any(0, 1)) SSL_set_tlsext_host_name(*client, "shop.example");
    for (int turn = 0; turn < 10; turn++) SSL_do_handshake(*client), SSL_do_handshake(*server);
    memset(data, 'x', sizeof data);
    CHECK(SSL_write(*client, data, (int)any(1, sizeof data)) > 0 && SSL_read(*server, data, sizeof data) > 0);
    memset(data, 0, sizeof data);
}

static APART void tls_connection(int forget) { /* no SSL_free of the server's end */
    SSL *client, *server;
    tls_connect(&client, &server);
    SSL_free(client);
    if (!forget) SSL_free(server);
}

static APART void tls_peer(int forget) { /* no X509_free of the result of SSL_get_peer_certificate */
    SSL *client, *server;
    tls_connect(&client, &server);
    X509 *peer = SSL_get_peer_certificate(client);
    CHECK(peer);
    if (!forget) X509_free(peer);
    SSL_free(client), SSL_free(server);
}

static APART void tls_key(int forget) { /* no EVP_PKEY_free of the result of X509_get_pubkey */
    X509 *read = read_certificate();
    EVP_PKEY *key = X509_get_pubkey(read);
    CHECK(key);
    if (!forget) EVP_PKEY_free(key);
    X509_free(read);
}

static APART void big_number(int forget) { /* no BN_free */
    char digits[400];
    unsigned count = any(1, 399);
    for (unsigned at = 0; at < count; at++) digits[at] = (char)('1' + any(0, 8));
    digits[count] = 0;
    BIGNUM *read = NULL;
    CHECK(BN_dec2bn(&read, digits));
    if (!forget) BN_free(read);
}

/* ---- curl ----------------------------------------------------------------------------------------------------------------------------- */

static size_t ignore(char *data, size_t size, size_t count, void *user) {
    (void)data, (void)user;
    return size * count;
}

static APART void curl_handle(int forget) { /* no curl_easy_cleanup */
    CURL *handle = curl_easy_init();
    curl_easy_setopt(handle, CURLOPT_URL, "file:///etc/passwd");
    curl_easy_setopt(handle, CURLOPT_WRITEFUNCTION, ignore);
    if (any(0, 1)) curl_easy_setopt(handle, CURLOPT_USERAGENT, word());
    CHECK(curl_easy_perform(handle) == CURLE_OK);
    if (!forget) curl_easy_cleanup(handle);
}

static APART void curl_list(int forget) { /* no curl_slist_free_all */
    struct curl_slist *headers = NULL;
    char text[200];
    for (unsigned left = any(1, 6); left; left--) {
        snprintf(text, sizeof text, "X-%s: %s", word(), word());
        headers = curl_slist_append(headers, text);
    }
    if (!forget) curl_slist_free_all(headers);
}

/* ---- SQLite --------------------------------------------------------------------------------------------------------------------------- */

static APART sqlite3 *database(void) {
    sqlite3 *base;
    CHECK(sqlite3_open(":memory:", &base) == SQLITE_OK);
    CHECK(sqlite3_exec(base, "CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT, price REAL)", NULL, NULL, NULL) == SQLITE_OK);
    char text[200];
    for (unsigned left = any(1, 20); left; left--) {
        snprintf(text, sizeof text, "INSERT INTO orders (name, price) VALUES ('%s', %u.5)", word(), any(1, 999));
        CHECK(sqlite3_exec(base, text, NULL, NULL, NULL) == SQLITE_OK);
    }
    return base;
}

static APART void sqlite_message(int forget) { /* no sqlite3_free of an error's text */
    sqlite3 *base = database();
    char text[200], *message = NULL;
    snprintf(text, sizeof text, "SELECT price FROM o%s", word());
    CHECK(sqlite3_exec(base, text, NULL, NULL, &message) != SQLITE_OK && message);
    if (!forget) sqlite3_free(message);
    CHECK(sqlite3_close(base) == SQLITE_OK);
}

static APART void sqlite_table(int forget) { /* no sqlite3_free_table */
    sqlite3 *base = database();
    char **table;
    int rows, columns;
    CHECK(sqlite3_get_table(base, "SELECT * FROM orders", &table, &rows, &columns, NULL) == SQLITE_OK);
    if (!forget) sqlite3_free_table(table);
    CHECK(sqlite3_close(base) == SQLITE_OK);
}

/* ---- zlib ----------------------------------------------------------------------------------------------------------------------------- */

static APART void squeeze(z_stream *stream, unsigned char *packed, unsigned size) {
    char text[2000];
    for (unsigned at = 0; at < sizeof text; at++) text[at] = (char)any('a', 'f');
    stream->next_in = (unsigned char *)text, stream->avail_in = any(100, sizeof text);
    stream->next_out = packed, stream->avail_out = size;
    CHECK(deflate(stream, Z_FINISH) == Z_STREAM_END);
}

static APART void zlib_deflate(int forget) { /* no deflateEnd */
    unsigned char packed[4096];
    z_stream *stream = calloc(1, sizeof *stream);
    CHECK(deflateInit(stream, 6) == Z_OK);
    squeeze(stream, packed, sizeof packed);
    if (!forget) deflateEnd(stream);
    free(stream);
}

static APART void zlib_inflate(int forget) { /* no inflateEnd */
    unsigned char packed[4096], text[4096];
    z_stream stream = {0}, back = {0};
    CHECK(deflateInit(&stream, 6) == Z_OK);
    squeeze(&stream, packed, sizeof packed);
    CHECK(inflateInit(&back) == Z_OK);
    back.next_in = packed, back.avail_in = (unsigned)stream.total_out;
    back.next_out = text, back.avail_out = any(50, 90); /* the rest is never requested */
    CHECK(inflate(&back, Z_NO_FLUSH) == Z_OK);
    deflateEnd(&stream);
    if (!forget) inflateEnd(&back);
}

/* ---- others --------------------------------------------------------------------------------------------------------------------------- */

static APART void json_order(int forget) { /* no json_object_put */
    char text[4096], *at = text + sprintf(text, "{\"id\": %u, \"name\": \"%s\", \"items\": [", any(1, 1u << 30), word());
    for (unsigned left = any(1, 9); left; left--) at += sprintf(at, "{\"sku\": \"%s\", \"price\": %u.5}%s", word(), any(1, 99), left > 1 ? "," : "");
    at += sprintf(at, "]");
    if (any(0, 1)) at += sprintf(at, ", \"note\": \"%s\"", word());
    sprintf(at, "}");
    struct json_object *read = json_tokener_parse(text);
    CHECK(read);
    if (!forget) json_object_put(read);
}

static void XMLCALL element(void *user, const XML_Char *name, const XML_Char **attributes) { (void)user, (void)name, (void)attributes; }

static APART void expat_parser(int forget) { /* no XML_ParserFree */
    char text[4096];
    XML_Parser parser = XML_ParserCreate(NULL);
    XML_SetStartElementHandler(parser, element);
    CHECK(XML_Parse(parser, text, order(text), 1) == XML_STATUS_OK);
    if (!forget) XML_ParserFree(parser);
}

static APART void uv_folder(int forget) { /* no uv_fs_req_cleanup */
    uv_fs_t request;
    uv_dirent_t entry;
    CHECK(uv_fs_scandir(uv_default_loop(), &request, "/etc", 0, NULL) > 0);
    for (unsigned left = any(0, 5); left; left--) uv_fs_scandir_next(&request, &entry);
    if (!forget) uv_fs_req_cleanup(&request);
    memset(&request, 0, sizeof request), memset(&entry, 0, sizeof entry);
    __asm__ volatile("" ::"r"(&request), "r"(&entry) : "memory");
}

static void tick(uv_timer_t *timer) { (void)timer; }
static void closed(uv_handle_t *handle) { free(handle); }

static APART void uv_timers(int forget) { /* no uv_loop_close, as a timer is open */
    uv_loop_t *loop = malloc(sizeof *loop);
    CHECK(!uv_loop_init(loop));
    uv_timer_t *timer = malloc(sizeof *timer);
    uv_timer_init(loop, timer);
    uv_timer_start(timer, tick, any(1, 1000), 0);
    if (!forget) {
        uv_close((uv_handle_t *)timer, closed);
        uv_run(loop, UV_RUN_DEFAULT);
        CHECK(!uv_loop_close(loop));
        free(loop);
    }
}

static PGconn *connection;

static APART void pq_result(int forget) { /* no PQclear */
    char text[200];
    snprintf(text, sizeof text, "SELECT i AS id, repeat('%s', i) AS name FROM generate_series(1, %u) i", word(), any(1, 30));
    PGresult *result = PQexec(connection, text);
    CHECK(PQresultStatus(result) == PGRES_TUPLES_OK);
    if (!forget) PQclear(result);
}

static APART void pq_options(int forget) { /* no PQconninfoFree */
    PQconninfoOption *options = PQconninfo(connection);
    CHECK(options);
    if (!forget) PQconninfoFree(options);
}

static APART void regular_expression(int forget) { /* no regfree, of one in a structure that is forgotten, too */
    regex_t *compiled = malloc(sizeof *compiled);
    char text[200], subject[100];
    snprintf(text, sizeof text, "^(%s|[a-z]+)=([0-9]*)", word());
    snprintf(subject, sizeof subject, "%s=%u", word(), any(0, 999));
    CHECK(!regcomp(compiled, text, REG_EXTENDED) && !regexec(compiled, subject, 0, NULL, 0));
    if (!forget) regfree(compiled), free(compiled);
}

static APART void addresses(int forget) { /* no freeaddrinfo */
    struct addrinfo *found, hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    char host[40];
    snprintf(host, sizeof host, "127.%u.%u.%u", any(0, 255), any(0, 255), any(1, 254));
    CHECK(!getaddrinfo(host, "5432", &hints, &found));
    if (!forget) freeaddrinfo(found);
}

static APART void folder(int forget) { /* no closedir */
    DIR *opened = opendir("/etc");
    for (unsigned left = any(0, 9); left; left--) readdir(opened);
    if (!forget) closedir(opened);
}

/* --------------------------------------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    void (*use)(int forget);
} ways[] = {
#define WAY(name) {#name, name}
    WAY(xml_document), WAY(xml_property), WAY(xml_xpath),       WAY(tls_connection), WAY(tls_peer),     WAY(tls_key),
    WAY(big_number),   WAY(curl_handle),  WAY(curl_list),                            WAY(sqlite_table),
    WAY(sqlite_message), WAY(zlib_deflate), WAY(zlib_inflate),  WAY(json_order),     WAY(expat_parser), WAY(uv_folder),
    WAY(uv_timers),    WAY(pq_result),    WAY(pq_options),      WAY(regular_expression), WAY(addresses), WAY(folder),
};
enum { WAYS = sizeof ways / sizeof *ways };

/* Work that leaks nothing. What it leaves in the heap is there when blocks are lost. */
static APART void work(unsigned times) {
    void *between[100] = {0};
    for (unsigned i = 0; i < times; i++) {
        unsigned at = any(0, 99);
        ways[any(0, WAYS - 1)].use(0);
        free(between[at]);
        between[at] = calloc(1, any(1, any(0, 9) ? 200 : 5000)); /* so that blocks are not always at the same place */
    }
    for (unsigned at = 0; at < 100; at++) free(between[at]);
}

static APART void lose(int which, unsigned count) {
    way = which + 1;
    for (unsigned i = 0; i < count; i++) ways[which].use(1);
    way = 0;
    for (int i = 0; i < 3; i++) ways[which].use(0); /* a library may keep the last object, which is then not lost */
    wipe();
}

int main(int argc, char **argv) {
    CHECK(argc >= 4);
    state = 0x9e3779b97f4a7c15u * (uint64_t)(atoi(argv[1]) + 1);
    unsigned most = (unsigned)atoi(argv[3]);
    slots = mmap(NULL, SLOTS * sizeof *slots, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(slots != MAP_FAILED);
    curl_global_init(CURL_GLOBAL_ALL);
    tls_prepare();
    connection = PQconnectdb(argv[2]);
    CHECK(PQstatus(connection) == CONNECTION_OK);
    for (int i = 0; i < WAYS; i++) ways[i].use(0); /* allocates what libraries keep for themselves */
    work(any(50, 500));
    unsigned order[WAYS];
    for (unsigned i = 0; i < WAYS; i++) order[i] = i;
    for (unsigned i = WAYS - 1; i; i--) {
        unsigned other = any(0, i), one = order[i];
        order[i] = order[other], order[other] = one;
    }
    unsigned left = argc == 4 ? any(1, 8) : WAYS;
    for (unsigned i = 0; i < WAYS && left; i++) {
        int wanted = argc == 4;
        for (int at = 4; at < argc; at++) wanted = wanted || !strcmp(argv[at], ways[order[i]].name);
        if (!wanted) continue;
        lose((int)order[i], any(1, most));
        work(any(0, 20));
        left--;
    }
    wipe();
    for (unsigned at = 0; at < SLOTS; at++)
        if (slots[at].way) printf("%s %#lx %zu\n", ways[slots[at].way - 1].name, ~slots[at].hidden, malloc_usable_size((void *)~slots[at].hidden));
    printf("ready\n");
    fflush(stdout);
    wipe();
    for (;;) pause();
}
