/* A program that prints the true type of each of its blocks: arrays with unused elements, and structs whose links are null in leaked
 * blocks. The heap has former content: addresses of blocks and numbers. Devices have void pointers to states; some of the states also fit
 * another struct. Tables with void pointers have structs or text as values.
 *
 *   typed_rows SHEETS */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define NOINLINE __attribute__((noinline))
#define NEW(type) ((type *)told(malloc(sizeof(type)), #type))
enum { CHUNKS = 64 };
struct style { char *font; uint32_t color, flags; struct style *parent; };
struct cell { char *text; struct style *style; uint32_t row, column; };
struct row { struct cell *cells; uint32_t count, room; struct row *next; };
struct sheet { struct row **rows; uint32_t row_count; char *title; struct sheet *next; struct style **styles; uint32_t style_count; };
struct mark { struct sheet *sheet; char *name; struct mark *next; };
struct dependency { struct row *from, *to; struct dependency *next; };
struct point { double x, y, z; };
struct kind { void (*open)(void *); const char *name; };
struct device { const struct kind *kind; void *state; struct device *next; uint64_t number; };
struct net_state { unsigned char mac[6]; uint16_t limit; struct route *routes; struct point *place; };
struct disk_state { uint64_t start, length; char *label; };
struct route { struct route *next; uint64_t to; };
struct entry { struct entry *next; char *key; void *value; };
struct table { struct entry *first; uint64_t count; void (*release)(void *); };
struct user { uint32_t number, age; char *name, *mail; struct table *notes; };
static void open_net(void *state) { free(state); }
static const struct kind net = {open_net, "net"};
static struct { struct sheet *sheets; struct mark *marks; struct dependency *dependencies; struct device *devices; struct table *users; } book;
static uint64_t state = 1;
static int leaking;
static unsigned roll(unsigned below) { state = state * 6364136223846793005ul + 1442695040888963407ul; return (unsigned)((state >> 33) % below); }
static NOINLINE void *told(void *block, const char *type) { printf("%lx %s %s\n", (unsigned long)block, leaking ? "leaked" : "reachable", type); return block; }
static NOINLINE char *text(void) { unsigned size = 1 + roll(40); char *made = told(malloc(size + 1), "char[]"); for (unsigned at = 0; at < size; at++) made[at] = (char)('a' + roll(26)); made[size] = 0; return made; }
/* Allocate and free blocks with addresses and numbers. */
static NOINLINE void leave_content(void) {
    void **blocks[CHUNKS];
    for (unsigned at = 0; at < CHUNKS; at++) {
        size_t words = 2 + roll(14);
        blocks[at] = malloc(8 * words);
        for (size_t word = 0; word < words; word++) blocks[at][word] = roll(2) ? (void *)blocks[roll(at + 1)] : (void *)(uintptr_t)roll(1000);
    }
    for (unsigned at = 0; at < CHUNKS; at++) { unsigned other = roll(CHUNKS); void **one = blocks[at]; blocks[at] = blocks[other]; blocks[other] = one; }
    for (unsigned at = 0; at < CHUNKS; at++) free(blocks[at]);
    memset(blocks, 0, sizeof blocks);
    __asm__ volatile("" ::"r"(blocks) : "memory");
}
static NOINLINE void add_cells(struct row *row, struct sheet *sheet, unsigned number) {
    for (unsigned left = 1 + roll(6); left; left--) {
        if (row->count == row->room) { row->room = row->room ? 2 * row->room : 2; row->cells = realloc(row->cells, row->room * sizeof *row->cells); }
        row->cells[row->count] = (struct cell){roll(4) ? text() : NULL, sheet->styles[roll(sheet->style_count)], number, row->count};
        row->count++;
    }
    told(row->cells, "struct cell[]");
}
static NOINLINE struct sheet *sheet(void) {
    struct sheet *made = NEW(struct sheet);
    *made = (struct sheet){.title = text(), .row_count = 3 + roll(6), .style_count = 2 + roll(3)};
    made->rows = told(malloc(8 * made->row_count), "struct row *[]");
    made->styles = told(calloc(made->style_count, 8), "struct style *[]");
    for (unsigned at = 0; at < made->style_count; at++) {
        struct style *one = made->styles[at] = NEW(struct style);
        *one = (struct style){text(), roll(1 << 24), roll(16), at ? made->styles[roll(at)] : NULL};
    }
    for (unsigned at = 0; at < made->row_count; at++) {
        struct row *one = made->rows[at] = NEW(struct row);
        *one = (struct row){.next = at ? made->rows[at - 1] : NULL};
        add_cells(one, made, at);
        if (at && !roll(3)) {
            struct dependency *link = NEW(struct dependency);
            *link = (struct dependency){one, made->rows[at - 1], leaking ? NULL : book.dependencies};
            if (!leaking) book.dependencies = link;
        }
    }
    return made;
}
static NOINLINE void add_device(unsigned number) {
    struct device *made = NEW(struct device);
    struct net_state *one = NEW(struct net_state);
    *made = (struct device){&net, one, leaking ? NULL : book.devices, number};
    if (!leaking) book.devices = made;
    *one = (struct net_state){"abcde", 1500, NULL, NEW(struct point)};
    *one->place = (struct point){roll(99) / 3.0, roll(99) / 7.0, roll(99)};
    for (unsigned left = roll(3); left; left--) { struct route *next = NEW(struct route); *next = (struct route){one->routes, roll(1000)}; one->routes = next; }
}
static NOINLINE void put(struct table *table, char *key, void *value) { struct entry *made = NEW(struct entry); *made = (struct entry){table->first, key, value}; table->first = made; table->count++; }
static NOINLINE struct table *table(void (*release)(void *)) { struct table *made = NEW(struct table); *made = (struct table){.release = release}; return made; }
static NOINLINE void add_user(unsigned number) {
    struct user *made = NEW(struct user);
    *made = (struct user){number, roll(90), text(), roll(3) ? text() : NULL, roll(4) ? NULL : table(free)};
    for (unsigned left = made->notes ? 1 + roll(4) : 0; left; left--) put(made->notes, text(), text());
    if (!leaking) put(book.users, text(), made);
}
static NOINLINE void clear_stack(void) { volatile char space[65536]; for (size_t at = 0; at < sizeof space; at++) space[at] = 0; }
int main(int argc, char **argv) {
    unsigned count = argc > 1 ? (unsigned)atoi(argv[1]) : 100;
    for (unsigned at = 0; at < 50; at++) leave_content();
    book.users = table(open_net);
    for (unsigned at = 0; at < count; at++) {
        leaking = at % 5 == 1;
        struct sheet *made = sheet();
        struct mark *mark = NEW(struct mark);
        *mark = (struct mark){made, text(), leaking ? NULL : book.marks};
        if (!leaking) { book.marks = mark; made->next = book.sheets; book.sheets = made; }
        add_device(at);
        add_user(at);
        if (at % 4 == 0) leave_content();
    }
    clear_stack();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
