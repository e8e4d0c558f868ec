/* A program that prints the true type of each of its blocks, as typed_truth.c does: a mail server whose structs are followed by
 * their arrays in the same block. Some blocks are reached only from such an array. A fifth of the accounts is leaked.
 *
 *   typed_tails ACCOUNTS SEED */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
struct link {
    struct link *next, *prev;
};
struct token { /* 40 bytes, like struct filter */
    char *secret;
    long issued, expires, uses;
    struct account *owner;
};
struct filter {
    struct filter *next;
    char *pattern;
    long hits;
    int (*match)(const char *);
    struct folder *target;
};
struct grant {
    struct token *token;
    long rights;
};
struct folder {
    long uid;
    struct link messages, siblings;
    char *name;
};
enum kind { TEXT, FILED, PARTS };
struct file {
    int descriptor;
    long size;
    char *path;
};
struct message {
    struct link link; /* in folder.messages */
    struct field *fields;
    union {
        char *text;
        struct file *file;
        struct message **parts;
    } body;
    int kind, count;
    char subject[20];
};
struct field {
    char *name, *value;
    struct field *folded;
};
struct thread { /* with an array at its end */
    int count;
    struct message *first;
    struct folder *in[];
};
struct account {
    struct account *next;
    struct link folders;
    struct grant *grants; /* after the account, in its block */
    struct thread **threads; /* after the grants, in the same block */
    struct filter *filters;
    size_t grant_count, thread_count;
    void *backend; /* struct imap or struct local, depending on `ops` */
    const struct ops *ops;
};
struct ops {
    const char *name;
    int (*open)(void *);
};
struct imap {
    char *host;
    struct token *login;
    long port, state, unseen, capability[4];
};
struct local {
    long flags;
    struct folder *inbox;
    char *directory;
    long quota[5], used;
};
static int always(const char *text) { return *text != 0; }
static int opened(void *of) { return of != NULL; }
const struct ops imap_ops = {"imap", opened}, local_ops = {"local", opened};
struct account *accounts;
static unsigned seed;
static int chance(int most) { return (int)((seed = seed * 1103515245u + 12345u) >> 16) % most; }
static void *told(void *block, const char *type) {
    printf("%lx block %s\n", (unsigned long)block, type);
    return block;
}
#define NEW(type) told(calloc(1, sizeof(type)), #type)
static char *text(const char *what) {
    char *made = told(calloc(1, 24 + (size_t)chance(24)), "char");
    snprintf(made, 24, "%s-%d", what, chance(100000));
    return made;
}
static void append(struct link *list, struct link *one) {
    one->next = list;
    one->prev = list->prev;
    list->prev->next = one;
    list->prev = one;
}
static struct token *make_token(struct account *owner) {
    struct token *made = NEW(struct token);
    *made = (struct token){text("secret"), 1700000000 + chance(1000), 1800000000, chance(50), owner};
    return made;
}
static struct message *make_message(struct folder *in, int depth) {
    int count = 1 + chance(5), kind = chance(depth ? 2 : 3);
    struct message *made = told(calloc(1, sizeof *made + (size_t)count * sizeof *made->fields), "struct message");
    made->fields = (struct field *)(made + 1);
    made->count = count;
    for (int at = 0; at < count; at++)
        made->fields[at] = (struct field){text("field"), text("value"), at ? &made->fields[at - 1] : NULL};
    snprintf(made->subject, sizeof made->subject, "re: %d", chance(1000));
    made->kind = kind;
    if (kind == TEXT)
        made->body.text = text("Dear all");
    if (kind == FILED) {
        made->body.file = NEW(struct file);
        *made->body.file = (struct file){chance(100), chance(100000), text("/var/mail")};
    }
    if (kind == PARTS) {
        made->body.parts = told(calloc(4, sizeof(struct message *)), "struct message *[4]");
        for (int at = 0; at < 4; at++)
            made->body.parts[at] = make_message(NULL, 1);
    }
    made->link.next = made->link.prev = &made->link;
    if (in)
        append(&in->messages, &made->link);
    return made;
}
static struct account *make_account(void) {
    size_t grants = 2 + (size_t)chance(4), threads = 1 + (size_t)chance(4);
    struct account *made = told(calloc(1, sizeof *made + grants * sizeof(struct grant) + threads * sizeof(void *)), "struct account");
    made->folders.next = made->folders.prev = &made->folders;
    made->grants = (struct grant *)(made + 1);
    made->threads = (struct thread **)(made->grants + grants);
    made->grant_count = grants;
    made->thread_count = threads;
    for (size_t at = 0; at < grants; at++)
        made->grants[at] = (struct grant){make_token(made), chance(8)};
    struct folder *folder = NULL;
    for (int at = 0; at < 2; at++) {
        folder = NEW(struct folder);
        folder->uid = chance(1000);
        folder->name = text("folder");
        folder->messages.next = folder->messages.prev = &folder->messages;
        append(&made->folders, &folder->siblings);
        for (int each = 0; each < 2; each++)
            make_message(folder, 0);
    }
    for (size_t at = 0; at < threads; at++) {
        int count = 1 + chance(6);
        struct thread *one = made->threads[at] = told(calloc(1, sizeof *one + (size_t)count * sizeof *one->in), "struct thread");
        one->count = count;
        one->first = make_message(NULL, 0);
        for (int each = 0; each < count; each++)
            one->in[each] = folder;
    }
    for (int at = chance(3); at; at--) {
        struct filter *one = NEW(struct filter);
        *one = (struct filter){made->filters, text("pattern"), chance(9), always, folder};
        made->filters = one;
    }
    if (chance(2)) {
        struct imap *one = made->backend = NEW(struct imap);
        *one = (struct imap){text("host"), make_token(made), 993, chance(3), chance(50), {1, 2, 3, 4}};
        made->ops = &imap_ops;
    } else {
        struct local *one = made->backend = NEW(struct local);
        *one = (struct local){chance(4), folder, text("/home"), {5, 4, 3, 2, 1}, chance(1000)};
        made->ops = &local_ops;
    }
    return made;
}
int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 100;
    seed = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
    for (int at = 0; at < count; at++) {
        struct account *one = make_account();
        if (at % 5 != 4) {
            one->next = accounts;
            accounts = one;
        }
    }
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}
