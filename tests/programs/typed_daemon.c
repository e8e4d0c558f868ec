/* A program that prints the true type of each of its blocks: a daemon. Plugins have void pointers to states;
 * some states have the same shape as other structs. A third of the leaked blocks belong to types of which no block is reachable.
 * Counted pointers refer to arrays of structs.
 *
 *   typed_daemon CLIENTS SEED */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define NEW(type) ((type *)told(calloc(1, sizeof(type)), #type))
#define ARRAY(type, count) ((type *)told(calloc(count, sizeof(type)), (count) > 1 ? #type "[]" : #type))
#define NOINLINE __attribute__((noinline))
struct string { size_t length; char *bytes; };
struct header { struct string name, value; };
struct headers { unsigned count, room; struct header *list; };
struct request { struct request *next; char *method, *path; struct headers headers; struct chunk *body; uint64_t started; };
struct chunk { struct chunk *next; unsigned length, room; unsigned char data[]; };
struct route { struct route *sibling, *child; char *pattern; int (*handle)(struct request *); };
struct client { struct client *next, **link; int fd; unsigned flags; struct request *queue; struct address *peer; void *data; void (*drop)(void *); };
struct address { uint16_t family, port; uint32_t ip; char *name; };
/* Live and leaked-only structs with one shape: a link, a text, a number. */
struct option { struct option *next; char *name; unsigned value, used; };
struct quota { struct quota *chain; char *owner; unsigned limit, spent; };
struct ticket { struct ticket *next; char *subject; uint64_t number; };
/* Live and leaked-only structs with one shape: two pointers to structs, a number. */
struct binding { struct route *route; struct client *client; uint64_t id; };
struct waiter { struct client *who; struct request *what; uint64_t until; };
struct blame { struct client *first; struct client *second; uint64_t when; };
struct job { struct job *next; void (*run)(struct job *); struct string payload; struct address *to; unsigned tries; };
struct mail { struct mail *next; struct address *from, *to; struct string subject; unsigned size; };
struct cookie { char *name, *value; struct cookie *next; long expires; };
struct session { char *id; struct cookie *jar; struct client *client; struct option *options; };
struct tls { int fd; int version; char *cipher; struct string *chain; unsigned depth; struct option *options; };
struct websocket { int opcode; int masked; char *protocol; struct string *frames; unsigned count; struct chunk *pending; };
struct metric { char *name; double sum; struct sample *samples; unsigned count; };
struct sample { double when, value; char *label; };
struct plugin { struct plugin *next; const char *name; void *state; };
struct cache { struct header *slots; unsigned count, hits; };
struct limits { struct bucket *slots; unsigned count, rate; };
struct bucket { char *who; size_t tokens; struct bucket *chain; size_t last; };
static struct { struct client *clients; struct route *routes; struct job *jobs; struct binding **bindings; unsigned binding_count; struct plugin *plugins; struct option *options; struct metric *metrics; unsigned metric_count; struct waiter *waiters[64]; } daemon_;
static uint64_t state = 1;
static int leaking;
static unsigned roll(unsigned below) { state = state * 6364136223846793005ul + 1442695040888963407ul; return (unsigned)((state >> 33) % below); }
static NOINLINE void *told(void *block, const char *type) { printf("%lx %s %s\n", (unsigned long)block, leaking ? "leaked" : "reachable", type); return block; }
static NOINLINE char *text(void) { unsigned size = 1 + roll(30); char *made = told(malloc(size + 1), "char[]"); for (unsigned at = 0; at < size; at++) made[at] = (char)('a' + roll(26)); made[size] = 0; return made; }
static struct string string(void) { struct string made; made.bytes = text(); made.length = strlen(made.bytes); return made; }
static NOINLINE struct address *address(void) { struct address *made = NEW(struct address); made->family = 2; made->port = (uint16_t)roll(60000); made->ip = roll(1u << 31); if (roll(2)) made->name = text(); return made; }
static NOINLINE struct option *options(unsigned count) { struct option *first = NULL; while (count--) { struct option *made = NEW(struct option); made->name = text(); made->value = roll(100); made->used = roll(2); made->next = first; first = made; } return first; }
static NOINLINE struct chunk *chunk(void) { unsigned room = 16 + 16 * roll(5); struct chunk *made = told(calloc(1, sizeof(struct chunk) + room), "struct chunk"); made->room = room; made->length = roll(room); memset(made->data, 'x', made->length); if (roll(3) == 0) made->next = chunk(); return made; }
static NOINLINE struct request *request(void) {
    struct request *made = NEW(struct request);
    made->method = text(); made->path = text(); made->started = 1700000000 + roll(100000);
    made->headers.count = 1 + roll(6); made->headers.room = made->headers.count;
    made->headers.list = ARRAY(struct header, made->headers.room);
    for (unsigned at = 0; at < made->headers.count; at++) made->headers.list[at] = (struct header){string(), string()};
    if (roll(2)) made->body = chunk();
    return made;
}
static int handle_any(struct request *request) { return request != NULL; }
static NOINLINE struct route *route(int depth) { struct route *made = NEW(struct route); made->pattern = text(); made->handle = handle_any; if (depth > 0) { if (roll(4)) made->sibling = route(depth - 1); if (roll(2)) made->child = route(depth - 1); } return made; }
static void drop_session(void *of) { free(of); }
static void drop_tls(void *of) { (void)of; }
static void drop_websocket(void *of) { free(of); abort(); }
static NOINLINE void attach(struct client *to) {
    unsigned kind = roll(4);
    if (kind == 0) { struct session *made = to->data = NEW(struct session); made->id = text(); made->client = to; made->options = options(roll(3)); for (unsigned n = roll(4); n; n--) { struct cookie *cookie = NEW(struct cookie); cookie->name = text(); cookie->value = text(); cookie->expires = 1700000000; cookie->next = made->jar; made->jar = cookie; } to->drop = drop_session; }
    if (kind == 1) { struct tls *made = to->data = NEW(struct tls); made->fd = 9; made->version = 3; made->cipher = text(); made->depth = 1 + roll(3); made->chain = ARRAY(struct string, made->depth); for (unsigned at = 0; at < made->depth; at++) made->chain[at] = string(); made->options = options(roll(2)); to->drop = drop_tls; }
    if (kind == 2) { struct websocket *made = to->data = NEW(struct websocket); made->opcode = (int)roll(3); made->protocol = text(); made->count = 1 + roll(3); made->frames = ARRAY(struct string, made->count); for (unsigned at = 0; at < made->count; at++) made->frames[at] = string(); made->pending = roll(2) ? chunk() : NULL; to->drop = drop_websocket; }
}
static NOINLINE struct client *client(void) {
    struct client *made = NEW(struct client);
    made->fd = 3 + (int)roll(900); made->flags = roll(8); made->peer = address();
    for (unsigned n = roll(4); n; n--) { struct request *one = request(); one->next = made->queue; made->queue = one; }
    attach(made);
    return made;
}
static void run_any(struct job *job) { job->tries++; }
static NOINLINE struct job *job(void) { struct job *made = NEW(struct job); made->run = run_any; made->payload = string(); made->to = roll(2) ? address() : NULL; return made; }
/* Leaked only. */
static NOINLINE void quotas(void) { struct quota *first = NULL; for (unsigned n = 1 + roll(4); n; n--) { struct quota *made = NEW(struct quota); made->owner = text(); made->limit = roll(100); made->spent = roll(2); made->chain = first; first = made; } }
static NOINLINE void tickets(void) { struct ticket *first = NULL; for (unsigned n = 1 + roll(4); n; n--) { struct ticket *made = NEW(struct ticket); made->subject = text(); made->number = roll(100000); made->next = first; first = made; } }
static NOINLINE void blame(struct client *a, struct client *b) { struct blame *made = NEW(struct blame); made->first = a; made->second = b; made->when = 1700000000 + roll(1000); }
static NOINLINE void mails(void) { struct mail *first = NULL; for (unsigned n = 1 + roll(3); n; n--) { struct mail *made = NEW(struct mail); made->from = address(); made->to = address(); made->subject = string(); made->size = roll(5000); made->next = first; first = made; } }
static NOINLINE void plugins(void) {
    for (unsigned at = 0; at < 8; at++) {
        struct plugin *made = NEW(struct plugin); made->name = "plugin"; made->next = daemon_.plugins; daemon_.plugins = made;
        if (at % 2 == 0) { struct cache *cache = made->state = NEW(struct cache); cache->count = 8; cache->slots = ARRAY(struct header, 8); for (unsigned n = 0; n < 8; n++) if (roll(2)) cache->slots[n] = (struct header){string(), string()}; }
        else { struct limits *limits = made->state = NEW(struct limits); limits->count = 8; limits->rate = 50; limits->slots = ARRAY(struct bucket, 8); for (unsigned n = 0; n < 8; n++) if (roll(2)) { limits->slots[n].who = text(); limits->slots[n].tokens = roll(9); if (roll(2)) { struct bucket *bucket = limits->slots[n].chain = NEW(struct bucket); bucket->who = text(); bucket->tokens = 3; } } }
    }
}
static NOINLINE void clear_stack(void) { volatile char space[32768]; for (size_t at = 0; at < sizeof space; at++) space[at] = 0; }
int main(int argc, char **argv) {
    unsigned clients = argc > 1 ? (unsigned)atoi(argv[1]) : 300;
    state = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
    daemon_.routes = route(6); daemon_.options = options(40);
    daemon_.bindings = ARRAY(struct binding *, clients);
    daemon_.metric_count = 20; daemon_.metrics = ARRAY(struct metric, 20);
    for (unsigned at = 0; at < 20; at++) { struct metric *metric = &daemon_.metrics[at]; metric->name = text(); metric->count = 1 + roll(9); metric->samples = ARRAY(struct sample, metric->count); for (unsigned n = 0; n < metric->count; n++) metric->samples[n] = (struct sample){n * 1.5, 2.5, roll(2) ? text() : NULL}; }
    plugins();
    for (unsigned at = 0; at < clients; at++) {
        leaking = at % 5 == 4;
        struct client *made = client(); struct job *one = job();
        if (leaking) { quotas(); tickets(); mails(); blame(made, daemon_.clients); continue; }
        made->next = daemon_.clients; made->link = &daemon_.clients; if (made->next) made->next->link = &made->next; daemon_.clients = made;
        one->next = daemon_.jobs; daemon_.jobs = one;
        struct binding *binding = daemon_.bindings[daemon_.binding_count++] = NEW(struct binding); binding->route = daemon_.routes; binding->client = made; binding->id = at;
        if (at < 64 && made->queue) { struct waiter *waiter = daemon_.waiters[at] = NEW(struct waiter); waiter->who = made; waiter->what = made->queue; waiter->until = 1700000000; }
    }
    clear_stack();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
