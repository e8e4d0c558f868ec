/* A program with types of git and of uWSGI, which prints the true type of each of its blocks. The hint files of findleaks for these programs
 * name the types behind void pointers. The text of objects is binary here, so its content does not show what it is.
 *
 *   typed_ready COUNT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))
#define NEW(T) ((struct T *)tell(calloc(1, sizeof(struct T)), "struct " #T))

struct packed_git { struct packed_git *next; char *name; };
struct commit_buffer { void *buffer; unsigned long size; };
struct tree { void *buffer; struct tree *next; unsigned long size; };
struct ref_storage_be { const char *name; };
struct ref_store { const struct ref_storage_be *be; const char *directory; };
struct files_ref_store { struct ref_store base; unsigned flags; struct ref_store *packed; };
struct packed_ref_store { struct ref_store base; unsigned flags; long snapshot[6]; };
struct ref_storage_be refs_be_files = {"files"}, refs_be_packed = {"packed"};
struct uwsgi_logger { char *name; long opened, descriptor; void *data; long spare[8]; };
struct uwsgi_regexp_list { struct uwsgi_regexp_list *next; void *custom_ptr; long custom; };
struct uwsgi_log_encoder { long lines; long written; long failed; long spare[12]; };
struct uwsgi_string_list { struct uwsgi_string_list *next; char *value; void *custom_ptr; };
static struct uwsgi_server { struct uwsgi_regexp_list *routes; struct uwsgi_string_list *encoders; } uwsgi;
static struct { struct tree *trees; struct commit_buffer *newest; struct packed_git *packs; unsigned long stores[2]; } repository;

static void *tell(void *block, const char *type) { printf("%lx reachable %s\n", (unsigned long)block, type); return block; }

static NOINLINE void *new_text(unsigned long size) {
    unsigned char *made = malloc(size);
    for (unsigned long at = 0; at < size; at++) made[at] = (unsigned char)(at * 7 + 129);
    return tell(made, "unsigned char[]");
}

static NOINLINE void build(int count) {
    for (int at = 0; at < count; at++) {
        struct tree *tree = NEW(tree);
        *tree = (struct tree){new_text(120), repository.trees, 120};
        repository.trees = tree;
        struct uwsgi_regexp_list *route = NEW(uwsgi_regexp_list);
        *route = (struct uwsgi_regexp_list){uwsgi.routes, NEW(uwsgi_logger), at};
        uwsgi.routes = route;
        struct uwsgi_string_list *one = NEW(uwsgi_string_list);
        *one = (struct uwsgi_string_list){uwsgi.encoders, NULL, NEW(uwsgi_log_encoder)};
        uwsgi.encoders = one;
    }
    repository.newest = NEW(commit_buffer);
    *repository.newest = (struct commit_buffer){new_text(200), 200};
    repository.packs = NEW(packed_git);
    struct packed_ref_store *packed = NEW(packed_ref_store);
    packed->base.be = &refs_be_packed;
    struct files_ref_store *files = NEW(files_ref_store);
    *files = (struct files_ref_store){{&refs_be_files, NULL}, 1, &packed->base};
    repository.stores[0] = (unsigned long)files;
}

int main(int argc, char **argv) {
    build(argc > 1 ? atoi(argv[1]) : 10);
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
