/* A program that prints the true type of each of its blocks, as typed_truth.c does. A hash table with open addressing has keys and values
 * of type void *. The messages in it are also in the lists of users. Each message contains the address of the link that refers to it,
 * as le_prev in sys/queue.h. Only these addresses refer to the users. A fifth of the users is leaked.
 *
 *   typed_slots USERS SEED */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define NOINLINE __attribute__((noinline))
struct link { struct link *next, **previous; };
struct queue { struct queue *forward, *backward; };
struct domain { char *name; unsigned hits; struct domain *parent; };
struct address { struct domain *domain; char *local; int flags; };
struct part { int type, depth; char *body; struct part *next; };
struct message {
    unsigned long id;
    struct address *from;
    struct address *to;
    int count;
    struct part *parts;
    struct link by_user;
    struct queue queue;
    void *cookie;
};
struct bounce { char *reason; struct message *original; int code; };
struct quota { long limit, used; struct quota *group; };
struct user { char *name; struct link messages; long color; struct quota *quota; struct user *manager; };
struct slot { unsigned hash; void *key; void *value; };
static struct { struct slot *slots; size_t mask, count; } messages;
static struct domain *domains[12];
static struct quota *quotas[6];
static unsigned long seed;
static int leaked;

static unsigned roll(unsigned n) {
    seed = seed * 6364136223846793005ul + 1442695040888963407ul;
    return (unsigned)(seed >> 33) % n;
}
static NOINLINE void *told(void *block, const char *type) {
    printf("%lx %s %s\n", (unsigned long)block, leaked ? "leaked" : "reachable", type);
    return block;
}
#define NEW(T) ((T *)told(calloc(1, sizeof(T)), #T))
static NOINLINE char *text(void) {
    unsigned size = 10 + roll(50);
    char *made = malloc(size + 1);
    for (unsigned at = 0; at < size; at++) made[at] = (char)('a' + roll(26));
    made[size] = 0;
    return told(made, "char");
}
static NOINLINE struct address address(void) {
    struct address made = {domains[roll(12)], text(), (int)roll(4)};
    return made;
}
static NOINLINE struct message *message(struct user *user) {
    struct message *made = NEW(struct message);
    made->id = 1 + roll(1u << 30);
    made->from = NEW(struct address);
    *made->from = address();
    made->count = 2 + (int)roll(4);
    made->to = told(calloc((size_t)made->count, sizeof(struct address)), "struct address[]");
    for (int at = 0; at < made->count; at++) made->to[at] = address();
    for (unsigned at = 1 + roll(2); at > 0; at--) {
        struct part *part = NEW(struct part);
        part->body = text();
        part->next = made->parts;
        made->parts = part;
    }
    made->queue.forward = made->queue.backward = &made->queue;
    made->by_user.next = user->messages.next;
    if (made->by_user.next) made->by_user.next->previous = &made->by_user.next;
    made->by_user.previous = &user->messages.next;
    user->messages.next = &made->by_user;
    if (roll(3) == 0) {
        struct bounce *bounce = NEW(struct bounce);
        bounce->reason = text();
        bounce->original = made;
        bounce->code = (int)roll(600);
        made->cookie = bounce;
    }
    if (!leaked && messages.count < messages.mask / 4 * 3) {
        size_t at = made->id & messages.mask;
        while (messages.slots[at].value) at = (at + 1) & messages.mask;
        messages.slots[at] = (struct slot){(unsigned)made->id, (void *)made->id, made};
        messages.count++;
    }
    return made;
}
static NOINLINE void user(void) {
    struct user *made = NEW(struct user);
    made->name = text();
    made->color = roll(2);
    made->quota = quotas[roll(6)];
    for (unsigned at = 2 + roll(3); at > 0; at--) message(made);
}
static NOINLINE void clear_stack(void) {
    volatile char space[16384];
    for (size_t at = 0; at < sizeof space; at++) space[at] = 0;
}
int main(int argc, char **argv) {
    unsigned long users = argc > 1 ? strtoul(argv[1], NULL, 10) : 300;
    seed = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
    for (int at = 0; at < 12; at++) {
        domains[at] = NEW(struct domain);
        domains[at]->name = text();
        domains[at]->parent = at ? domains[at / 2] : NULL;
    }
    for (int at = 0; at < 6; at++) {
        quotas[at] = NEW(struct quota);
        quotas[at]->limit = 1 + roll(100000);
        quotas[at]->group = at ? quotas[0] : NULL;
    }
    for (messages.mask = 1; messages.mask < 6 * users; messages.mask = 2 * messages.mask + 1) continue;
    messages.slots = told(calloc(messages.mask + 1, sizeof(struct slot)), "struct slot[]");
    for (unsigned long at = 0; at < users; at++) {
        leaked = at % 5 == 4;
        user();
    }
    clear_stack();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
