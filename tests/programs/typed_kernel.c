/* A program that prints the true type of each of its blocks: a file system cache in the style of a kernel.
 * Objects are linked by embedded list heads at any offset, hash lists with the address of the last link, and red-black nodes; callbacks
 * have a void *ctx; handles are opaque; devices begin with an embedded base object with an operations table.
 *
 *   typed_kernel VOLUMES SEED */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define NEW(type) ((type *)told(calloc(1, sizeof(type)), #type))
#define ARRAY(type, count) ((type *)told(calloc(count, sizeof(type)), (count) > 1 ? #type "[]" : #type))
#define NOINLINE __attribute__((noinline))
#define container_of(p, T, m) ((T *)((char *)(p)-offsetof(T, m)))
struct list_head { struct list_head *next, *prev; };
struct hlist_node { struct hlist_node *next, **pprev; };
struct hlist_head { struct hlist_node *first; };
struct rb_node { uintptr_t color; struct rb_node *left, *right; };
struct rb_root { struct rb_node *node; };
struct kref { int refs; };
struct work { struct list_head entry; void (*run)(struct work *); unsigned long flags; };
struct timer { struct hlist_node entry; unsigned long expires; void (*fire)(void *ctx); void *ctx; };
typedef struct handle_s *handle;
struct qstr { unsigned hash, length; char *name; };
struct dentry { unsigned flags : 5, seq : 20, negative : 1; struct hlist_node hash; struct dentry *parent; struct qstr name; struct inode *inode; struct list_head child, subdirs; };
struct inode { unsigned short mode, bits; unsigned uid : 12, gid : 12; struct volume *volume; const struct inode_ops *ops; struct rb_root pages; struct list_head lru; struct list_head all; uint64_t size; void *private_data; };
struct inode_ops { int (*open)(struct inode *); int (*release)(struct inode *); };
struct page { struct rb_node node; struct inode *inode; unsigned long index; unsigned char dirty : 1, valid : 1; struct buffer *buffers; };
struct buffer { struct buffer *ring; struct page *page; uint64_t block; void (*end_io)(struct buffer *, int); };
struct extent { struct rb_node node; uint64_t start, length; struct device *on; };
struct file { struct inode *inode; struct dentry *dentry; unsigned mode; uint64_t position; struct list_head of_owner; void *cursor; };
struct dir_cursor { struct dentry *at; unsigned long offset; };
struct pipe_cursor { unsigned head, tail; struct page *ring[4]; };
struct owner { struct kref ref; int id; struct list_head files; struct file **table; unsigned slots; char *comm; };
struct lock { struct list_head waiters, of_inode; struct owner *by; uint64_t from, to; };
struct waiter { struct owner *who; struct lock *what; struct list_head entry; };
struct device { struct kobject { const char *name; struct list_head entry; struct kobject *parent; struct kref ref; const struct ktype *type; } kobj; unsigned major : 12, minor : 20; void *driver_data; };
struct ktype { void (*release)(struct kobject *); const char *label; };
struct disk { struct device dev; uint64_t sectors; struct extent *root; struct partition *parts; unsigned count; };
struct partition { uint64_t start, length; char *label; };
struct net_disk { struct device dev; char *host; struct request *inflight; struct work reconnect; };
struct request { struct request *next; struct page *page; handle cookie; int (*done)(struct request *, void *); void *arg; };
struct journal { struct list_head transactions; struct timer commit; struct transaction *running; };
struct transaction { struct list_head entry; unsigned id; struct list_head buffers; struct jbuffer *first; };
struct jbuffer { struct list_head entry; struct buffer *of; struct transaction *in; };
struct volume { struct list_head entry, inodes, lru; struct hlist_head *dentries; unsigned mask; struct device *on; struct journal *journal; struct dentry *root; struct work sync; struct xattrs *xattrs; };
struct xattr { struct hlist_node node; char *name; unsigned size; unsigned char value[]; };
struct xattrs { unsigned count; struct hlist_head slots[8]; };
struct quota { struct rb_node node; int id; uint64_t limit, used; struct volume *on; };
struct handle_s { struct request *of; unsigned generation; };
struct notify { struct list_head entry; struct inode *on; int (*call)(void *ctx, int what); void *ctx; };
struct watch { char *pattern; unsigned mask; struct owner *by; };
struct audit { struct owner *by; struct inode *on; unsigned long when; char *text; };
static struct list_head volumes, owners, notifies, devices;
static struct rb_root quotas;
static struct hlist_head timers[32];
static struct lock **locks; static unsigned lock_count;
static uint64_t state = 1;
static int leaking;
static unsigned roll(unsigned below) { state = state * 6364136223846793005ul + 1442695040888963407ul; return (unsigned)((state >> 33) % below); }
static NOINLINE void *told(void *block, const char *type) { printf("%lx %s %s\n", (unsigned long)block, leaking ? "leaked" : "reachable", type); return block; }
static NOINLINE char *text(void) { unsigned size = 2 + roll(28); char *made = told(malloc(size + 1), "char[]"); for (unsigned at = 0; at < size; at++) made[at] = (char)('a' + roll(26)); made[size] = 0; return made; }
static void list_init(struct list_head *head) { head->next = head->prev = head; }
static void list_add(struct list_head *one, struct list_head *head) { one->next = head->next; one->prev = head; head->next->prev = one; head->next = one; }
static void hlist_add(struct hlist_node *one, struct hlist_head *head) { one->next = head->first; if (one->next) one->next->pprev = &one->next; head->first = one; one->pprev = &head->first; }
static void rb_add(struct rb_node *one, struct rb_root *root) { struct rb_node **at = &root->node, *parent = NULL; while (*at) { parent = *at; at = roll(2) ? &parent->left : &parent->right; } one->color = (uintptr_t)parent | roll(2); *at = one; }
static int open_any(struct inode *of) { return of != NULL; }
static int release_any(struct inode *of) { return of == NULL; }
static const struct inode_ops file_ops = {open_any, NULL}, dir_ops = {open_any, release_any}, pipe_ops = {NULL, release_any};
static void end_io(struct buffer *of, int how) { of->block += how; }
static void run_sync(struct work *of) { of->flags++; }
static void run_reconnect(struct work *of) { of->flags--; }
static void fire_commit(void *ctx) { ((struct journal *)ctx)->running = NULL; }
static void fire_owner(void *ctx) { ((struct owner *)ctx)->id = 0; }
static void free_disk(struct kobject *of) { free(of); }
static void free_net(struct kobject *of) { of->name = NULL; free(of); }
static const struct ktype disk_type = {free_disk, "disk"}, net_type = {free_net, "net"};
static int done_write(struct request *of, void *arg) { return of == arg; }
static int call_watch(void *ctx, int what) { return ((struct watch *)ctx)->mask & what; }
static int call_owner(void *ctx, int what) { return ((struct owner *)ctx)->id + what; }
static NOINLINE struct page *page(struct inode *of, unsigned long index) {
    struct page *made = NEW(struct page); made->inode = of; made->index = index; made->dirty = roll(2); made->valid = 1;
    if (roll(2)) { struct buffer *first = NULL, *last = NULL; for (unsigned n = 1 + roll(3); n; n--) { struct buffer *one = NEW(struct buffer); one->page = made; one->block = roll(100000); one->end_io = end_io; one->ring = first; if (!last) last = one; first = one; } last->ring = first; made->buffers = first; }
    rb_add(&made->node, &of->pages); return made;
}
static NOINLINE struct inode *inode(struct volume *of, unsigned kind) {
    struct inode *made = NEW(struct inode); made->mode = (unsigned short)(kind << 12); made->uid = roll(4000); made->gid = roll(4000); made->volume = of; made->ops = kind == 0 ? &file_ops : kind == 1 ? &dir_ops : &pipe_ops; made->size = roll(1 << 30);
    list_init(&made->lru); if (of) { list_add(&made->all, &of->inodes); if (roll(2)) list_add(&made->lru, &of->lru); } else list_init(&made->all);
    if (kind == 0) for (unsigned n = roll(5); n; n--) page(made, n);
    if (kind == 2) made->private_data = page(made, 1);
    return made;
}
static NOINLINE struct dentry *dentry(struct volume *of, struct dentry *parent, int depth) {
    struct dentry *made = NEW(struct dentry); made->flags = roll(32); made->seq = roll(1 << 20); made->parent = parent ? parent : made; made->name.name = text(); made->name.length = (unsigned)strlen(made->name.name); made->name.hash = roll(1u << 31); list_init(&made->subdirs); list_init(&made->child);
    if (parent) list_add(&made->child, &parent->subdirs);
    hlist_add(&made->hash, &of->dentries[made->name.hash & of->mask]);
    if (roll(6) == 0) made->negative = 1; else made->inode = inode(of, depth > 0 && roll(2) ? 1 : roll(4) ? 0 : 2);
    if (depth > 0 && made->inode && made->inode->ops == &dir_ops) for (unsigned n = 1 + roll(4); n; n--) dentry(of, made, depth - 1);
    return made;
}
static NOINLINE struct device *device(void) {
    struct device *made;
    if (roll(2)) { struct disk *one = NEW(struct disk); one->sectors = roll(1 << 30); made = &one->dev; made->kobj.type = &disk_type; one->count = 1 + roll(4); one->parts = ARRAY(struct partition, one->count); for (unsigned n = 0; n < one->count; n++) { one->parts[n].start = roll(1 << 20); one->parts[n].label = text(); }
        struct rb_root root = {NULL}; for (unsigned n = 1 + roll(5); n; n--) { struct extent *e = NEW(struct extent); e->start = roll(1 << 30); e->length = roll(1 << 20); e->on = made; rb_add(&e->node, &root); } one->root = container_of(root.node, struct extent, node); }
    else { struct net_disk *one = NEW(struct net_disk); one->host = text(); made = &one->dev; made->kobj.type = &net_type; one->reconnect.run = run_reconnect; list_init(&one->reconnect.entry);
        for (unsigned n = roll(4); n; n--) { struct request *r = NEW(struct request); r->done = done_write; r->arg = r; r->cookie = (handle)told(calloc(1, sizeof(struct handle_s)), "struct handle_s"); r->cookie->of = r; r->cookie->generation = roll(9); r->next = one->inflight; one->inflight = r; } }
    made->kobj.name = made->kobj.type->label; made->major = roll(4000); made->minor = roll(100000); if (roll(2)) made->driver_data = text(); list_init(&made->kobj.entry);
    return made;
}
static NOINLINE void journal(struct volume *of) {
    struct journal *made = of->journal = NEW(struct journal); list_init(&made->transactions); made->commit.fire = fire_commit; made->commit.ctx = made; made->commit.expires = roll(1 << 30); if (!leaking) hlist_add(&made->commit.entry, &timers[roll(32)]);
    for (unsigned n = roll(4); n; n--) { struct transaction *t = NEW(struct transaction); t->id = n; list_init(&t->buffers); list_add(&t->entry, &made->transactions); made->running = t; struct inode *some = of->root->inode; if (some) for (unsigned m = roll(4); m; m--) { struct page *p = page(some, m); if (p->buffers) { struct jbuffer *j = NEW(struct jbuffer); j->of = p->buffers; j->in = t; list_add(&j->entry, &t->buffers); t->first = j; } } }
}
static NOINLINE struct volume *volume(void) {
    struct volume *made = NEW(struct volume); list_init(&made->inodes); list_init(&made->lru); list_init(&made->entry); made->mask = 15; made->dentries = ARRAY(struct hlist_head, 16); made->sync.run = run_sync; list_init(&made->sync.entry); made->on = device();
    made->root = dentry(made, NULL, 3); journal(made);
    if (roll(2)) { struct xattrs *x = made->xattrs = NEW(struct xattrs); x->count = 1 + roll(6); for (unsigned n = x->count; n; n--) { unsigned size = 8 + roll(40); struct xattr *a = told(calloc(1, sizeof *a + size), "struct xattr"); a->name = text(); a->size = size; memset(a->value, 'v', size); hlist_add(&a->node, &x->slots[roll(8)]); } }
    return made;
}
static NOINLINE struct owner *owner(struct volume *on) {
    struct owner *made = NEW(struct owner); made->ref.refs = 1; made->id = (int)roll(30000); list_init(&made->files); made->comm = text(); made->slots = 4 + roll(9); made->table = ARRAY(struct file *, made->slots);
    unsigned at = 0; for (struct list_head *p = on->inodes.next; p != &on->inodes && at < made->slots - 1; p = p->next) { if (roll(3)) continue; struct file *f = made->table[at++] = NEW(struct file); f->inode = container_of(p, struct inode, all); f->mode = 3; f->position = roll(5000); f->dentry = on->root; list_add(&f->of_owner, &made->files);
        if (f->inode->ops == &dir_ops) { struct dir_cursor *c = f->cursor = NEW(struct dir_cursor); c->at = on->root; c->offset = 7; } if (f->inode->ops == &pipe_ops) { struct pipe_cursor *c = f->cursor = NEW(struct pipe_cursor); c->head = 2; c->ring[0] = f->inode->private_data; } }
    for (unsigned n = roll(3); n; n--) { struct lock *l = NEW(struct lock); list_init(&l->waiters); list_init(&l->of_inode); l->by = made; l->from = 1; l->to = roll(1000); if (!leaking) locks[lock_count++] = l; for (unsigned m = roll(3); m; m--) { struct waiter *w = NEW(struct waiter); w->who = made; w->what = l; list_add(&w->entry, &l->waiters); } }
    return made;
}
static NOINLINE void notify(struct inode *on, struct owner *by) { struct notify *made = NEW(struct notify); made->on = on; if (roll(2)) { struct watch *w = NEW(struct watch); w->pattern = text(); w->mask = roll(64); w->by = by; made->ctx = w; made->call = call_watch; } else { made->ctx = by; made->call = call_owner; } list_init(&made->entry); if (!leaking) list_add(&made->entry, &notifies); }
static NOINLINE void audit(struct owner *by, struct inode *on) { struct audit *made = NEW(struct audit); made->by = by; made->on = on; made->when = 1700000000 + roll(100000); made->text = text(); }
static NOINLINE void clear_stack(void) { volatile char space[32768]; for (size_t at = 0; at < sizeof space; at++) space[at] = 0; }
int main(int argc, char **argv) {
    unsigned count = argc > 1 ? (unsigned)atoi(argv[1]) : 300;
    state = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
    list_init(&volumes); list_init(&owners); list_init(&notifies); list_init(&devices);
    locks = ARRAY(struct lock *, count * 3);
    for (unsigned at = 0; at < count; at++) {
        leaking = at % 5 == 4;
        struct volume *made = volume();
        struct owner *one = owner(made);
        if (made->root->inode) notify(made->root->inode, one);
        struct quota *q = NEW(struct quota); q->id = one->id; q->limit = roll(1 << 30); q->on = made;
        if (leaking) { audit(one, made->root->inode); continue; }
        rb_add(&q->node, &quotas);
        list_add(&made->entry, &volumes); list_add(&made->on->kobj.entry, &devices);
        struct { struct list_head *head; } unused = {&owners}; (void)unused;
        { struct timer *t = NEW(struct timer); t->expires = 1000 + roll(100000); if (roll(2)) { t->fire = fire_commit; t->ctx = made->journal; } else { t->fire = fire_owner; t->ctx = one; } hlist_add(&t->entry, &timers[roll(32)]); }
        static struct owner **table; static unsigned used, room; if (used == room) { room = count; table = ARRAY(struct owner *, count); } table[used++] = one;
    }
    clear_stack();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
