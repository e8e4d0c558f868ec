/* A program that prints the true type of each of its blocks: an interpreter. Values are tagged unions in
 * counted arrays; objects begin with a common header (some with one of two bases); chunks of an arena have arrays of structs; skip lists
 * have arrays of links at their ends; open hash tables have tombstones; the symbols of a module are behind opaque handles.
 *
 *   typed_script MODULES SEED */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define NEW(type) ((type *)told(calloc(1, sizeof(type)), #type))
#define ARRAY(type, count) ((type *)told(calloc(count, sizeof(type)), (count) > 1 ? #type "[]" : #type))
#define NOINLINE __attribute__((noinline))
enum tag { NIL, BOOL, NUM, OBJ, NATIVE };
struct vm; struct value;
struct value { enum tag tag; union { int boolean; double number; struct obj *object; int (*native)(struct vm *, struct value *); } as; };
struct obj { uint8_t kind, marked : 1, frozen : 1; uint16_t age; struct obj *next; };
enum { STR, LIST, MAP, CLOSURE, CLASS, INSTANCE, UPVALUE, FIBER, RANGE, FOREIGN };
typedef struct { struct obj base; uint32_t length, hash; char chars[]; } str_t;
typedef struct { struct obj base; uint32_t count, room; struct value *items; } list_t;
struct slot { struct value key, value; };
typedef struct { struct obj base; uint32_t used, mask; struct slot *slots; } map_t;
struct proto { str_t *name; uint8_t *code; uint32_t code_size, const_count; struct value *consts; uint32_t *lines; struct proto **inner; uint16_t inner_count, arity; struct debug *debug; };
struct debug { str_t *file; struct local { str_t *name; uint32_t from, to; } *locals; uint32_t count; };
struct upvalue { struct obj base; struct value *where; struct value closed; struct upvalue *open; };
typedef struct { struct obj base; struct proto *proto; uint32_t count; struct upvalue *up[]; } closure_t;
struct class { struct obj base; str_t *name; struct class *super; struct method *methods; uint32_t count, room; };
struct method { str_t *name; closure_t *body; };
typedef struct { struct obj base; struct class *of; struct value fields[]; } instance_t;
struct frame { closure_t *closure; uint8_t *ip; struct value *slots; };
struct fiber { struct obj base; struct frame *frames; uint32_t frame_count, frame_room; struct value *stack, *top; struct upvalue *open; struct fiber *caller; };
typedef struct { struct obj base; double from, to; } range_t;
typedef struct { struct obj base; struct class *of; void (*finalize)(void *); void *data; } foreign_t;
struct file_handle { int fd; char *path; uint64_t position; };
struct regex { struct node *root; char *source; uint32_t groups; };
struct node { uint8_t op; uint8_t greedy : 1; uint16_t min, max; union { uint32_t letter; struct node *sub; struct { struct node *a, *b; } pair; uint64_t *set; } u; struct node *next; };
struct skip { double score; str_t *key; uint32_t levels; struct skip *next[]; };
struct skip_list { struct skip *head; uint32_t count; };
struct module { struct module *next; str_t *name; struct symbol_table *symbols; struct value *globals; uint32_t count; struct skip_list *timers; struct arena *arena; list_t *exports; struct import *imports; uint32_t import_count; };
struct import { str_t *path; struct module *from; struct value *slot; };
struct symbol_table { uint32_t mask, used; struct symbol **slots; };
struct symbol { str_t *name; uint32_t index; uint32_t flags; };
struct arena { struct chunk *chunks; size_t used, total; };
struct chunk { struct chunk *prev; size_t room; struct token { uint32_t kind, line; const char *start; size_t length; } tokens[16]; };
struct breakpoint { struct proto *in; uint32_t line; char *condition; struct breakpoint *next; };
struct trace { struct fiber *fiber; struct trace *prev; uint64_t at; };
struct snapshot { struct value *stack; size_t count; struct module *of; };
struct vm { struct obj *all; struct module *modules; map_t *strings; struct fiber *current; struct class *classes[10]; struct breakpoint *breaks; struct value *handles; size_t handle_count; };
static struct vm *vm;
static uint64_t state = 1;
static int leaking;
static str_t *tombstone;
static unsigned roll(unsigned below) { state = state * 6364136223846793005ul + 1442695040888963407ul; return (unsigned)((state >> 33) % below); }
static NOINLINE void *told(void *block, const char *type) { printf("%lx %s %s\n", (unsigned long)block, leaking ? "leaked" : "reachable", type); return block; }
static NOINLINE char *text(void) { unsigned size = 2 + roll(28); char *made = told(malloc(size + 1), "char[]"); for (unsigned at = 0; at < size; at++) made[at] = (char)('a' + roll(26)); made[size] = 0; return made; }
static void link_object(struct obj *one, int kind) { one->kind = (uint8_t)kind; one->age = (uint16_t)roll(9); if (!leaking) { one->next = vm->all; vm->all = one; } }
#define OBJECT(type, extra, kind) ({ type *o_ = told(calloc(1, sizeof(type) + (extra)), #type); link_object(&o_->base, kind); o_; })
static NOINLINE str_t *str(void) { unsigned size = 2 + roll(30); str_t *made = OBJECT(str_t, size + 1, STR); made->length = size; made->hash = roll(1u << 31); for (unsigned at = 0; at < size; at++) made->chars[at] = (char)('a' + roll(26)); return made; }
static int native_any(struct vm *of, struct value *args) { return of != NULL && args != NULL; }
static struct value object(void *of) { struct value v = {OBJ, {0}}; v.as.object = of; return v; }
static struct value number(double of) { struct value v = {NUM, {0}}; v.as.number = of; return v; }
static NOINLINE list_t *list(int depth);
static NOINLINE map_t *map(int depth);
static void close_file(void *of) { free(of); }
static void free_regex(void *of) { ((struct regex *)of)->groups = 0; }
static NOINLINE struct node *node(int depth) {
    struct node *made = NEW(struct node); made->op = (uint8_t)(depth > 0 ? roll(4) : 0); made->greedy = roll(2); made->min = (uint16_t)roll(3); made->max = (uint16_t)roll(100);
    if (made->op == 0) made->u.letter = roll(128); if (made->op == 1) made->u.sub = node(depth - 1); if (made->op == 2) { made->u.pair.a = node(depth - 1); made->u.pair.b = node(depth - 1); } if (made->op == 3) { made->u.set = ARRAY(uint64_t, 4); made->u.set[roll(4)] = roll(1u << 31); }
    if (depth > 0 && roll(2)) made->next = node(depth - 1);
    return made;
}
static NOINLINE foreign_t *foreign(void) {
    foreign_t *made = OBJECT(foreign_t, 0, FOREIGN); made->of = vm->classes[9];
    if (roll(2)) { struct file_handle *f = NEW(struct file_handle); f->fd = (int)roll(1000); f->path = text(); f->position = roll(1 << 20); made->data = f; made->finalize = close_file; }
    else { struct regex *r = NEW(struct regex); r->root = node(3); r->source = text(); r->groups = roll(4); made->data = r; made->finalize = free_regex; }
    return made;
}
static NOINLINE struct value any(int depth) {
    switch (roll(depth > 0 ? 9 : 5)) { case 0: return (struct value){NIL, {0}}; case 1: { struct value v = {BOOL, {0}}; v.as.boolean = 1; return v; } case 2: return number(roll(1000) / 7.0); case 3: return object(str()); case 4: { struct value v = {NATIVE, {0}}; v.as.native = native_any; return v; }
    case 5: return object(list(depth - 1)); case 6: return object(map(depth - 1)); case 7: { range_t *r = OBJECT(range_t, 0, RANGE); r->from = 1; r->to = roll(90); return object(r); } default: return object(foreign()); }
}
static NOINLINE list_t *list(int depth) { list_t *made = OBJECT(list_t, 0, LIST); made->room = 1 + roll(8); made->items = ARRAY(struct value, made->room); for (made->count = 0; made->count < made->room && roll(8); made->count++) made->items[made->count] = any(depth); return made; }
static NOINLINE map_t *map(int depth) { map_t *made = OBJECT(map_t, 0, MAP); made->mask = 7; made->slots = ARRAY(struct slot, 8); for (unsigned n = roll(6); n; n--) { struct slot *s = &made->slots[roll(8)]; s->key = roll(5) ? object(str()) : object(tombstone); s->value = any(depth); made->used++; } return made; }
static NOINLINE struct proto *proto(int depth) {
    struct proto *made = NEW(struct proto); made->name = str(); made->code_size = 8 + roll(60); made->code = told(malloc(made->code_size), "char[]"); for (unsigned n = 0; n < made->code_size; n++) made->code[n] = (uint8_t)(roll(255) + 1); made->const_count = 1 + roll(5); made->consts = ARRAY(struct value, made->const_count); for (unsigned n = 0; n < made->const_count; n++) made->consts[n] = any(0);
    made->lines = told(calloc(made->code_size, sizeof(uint32_t)), "char[]"); for (unsigned n = 0; n < made->code_size; n++) made->lines[n] = n; made->arity = (uint16_t)roll(4);
    if (depth > 0 && roll(2)) { made->inner_count = (uint16_t)(1 + roll(3)); made->inner = told(calloc(made->inner_count, sizeof(struct proto *)), "struct proto *[]"); for (unsigned n = 0; n < made->inner_count; n++) made->inner[n] = proto(depth - 1); }
    if (roll(2)) { made->debug = NEW(struct debug); made->debug->file = made->name; made->debug->count = 1 + roll(4); made->debug->locals = ARRAY(struct local, made->debug->count); for (unsigned n = 0; n < made->debug->count; n++) { made->debug->locals[n].name = str(); made->debug->locals[n].to = 40; } }
    return made;
}
static NOINLINE closure_t *closure(struct value *stack) { unsigned count = roll(4); closure_t *made = OBJECT(closure_t, count * sizeof(void *), CLOSURE); made->proto = proto(1); made->count = count; for (unsigned n = 0; n < count; n++) { struct upvalue *u = made->up[n] = OBJECT(struct upvalue, 0, UPVALUE); if (stack) u->where = stack + n; else { u->where = &u->closed; u->closed = any(0); } if (n) u->open = made->up[n - 1]; } return made; }
static NOINLINE struct class *class(struct class *super) { struct class *made = OBJECT(struct class, 0, CLASS); made->name = str(); made->super = super; made->room = 1 + roll(5); made->methods = ARRAY(struct method, made->room); for (made->count = 0; made->count < made->room; made->count++) { made->methods[made->count].name = str(); made->methods[made->count].body = closure(NULL); } return made; }
static NOINLINE instance_t *instance(struct class *of) { unsigned count = 1 + roll(5); instance_t *made = OBJECT(instance_t, count * sizeof(struct value), INSTANCE); made->of = of; for (unsigned n = 0; n < count; n++) made->fields[n] = any(1); return made; }
static NOINLINE struct fiber *fiber(struct fiber *caller) { struct fiber *made = OBJECT(struct fiber, 0, FIBER); made->stack = ARRAY(struct value, 32); made->top = made->stack; for (unsigned n = 4 + roll(9); n; n--) *made->top++ = any(1); made->frame_room = 4; made->frames = ARRAY(struct frame, 4); made->frame_count = 1 + roll(3); for (unsigned n = 0; n < made->frame_count; n++) { made->frames[n].closure = closure(made->stack); made->frames[n].ip = made->frames[n].closure->proto->code + 3; made->frames[n].slots = made->stack + n; if (made->frames[n].closure->count) made->open = made->frames[n].closure->up[0]; } made->caller = caller; return made; }
static NOINLINE struct module *module(struct module *from) {
    struct module *made = NEW(struct module); made->name = str();
    made->symbols = NEW(struct symbol_table); made->symbols->mask = 15; made->symbols->slots = ARRAY(struct symbol *, 16); made->count = 12; made->globals = ARRAY(struct value, made->count);
    for (unsigned n = 0; n < made->count; n++) { struct symbol *s = made->symbols->slots[n] = NEW(struct symbol); s->name = str(); s->index = n; made->globals[n] = any(2); }
    struct class *super = NULL; for (unsigned n = 1 + roll(3); n; n--) { super = class(super); made->globals[n - 1] = object(super); for (unsigned m = roll(4); m; m--) made->globals[3 + roll(9)] = object(instance(super)); }
    made->exports = list(1);
    struct skip_list *timers = made->timers = NEW(struct skip_list); timers->head = told(calloc(1, sizeof(struct skip) + 4 * sizeof(void *)), "struct skip"); timers->head->levels = 4;
    for (unsigned n = roll(8); n; n--) { unsigned levels = 1 + roll(4); struct skip *s = told(calloc(1, sizeof *s + levels * sizeof(void *)), "struct skip"); s->levels = levels; s->score = roll(100); s->key = str(); for (unsigned l = 0; l < levels; l++) { s->next[l] = timers->head->next[l]; timers->head->next[l] = s; } timers->count++; }
    made->arena = NEW(struct arena); char *source = text(); for (unsigned n = 1 + roll(3); n; n--) { struct chunk *c = NEW(struct chunk); c->prev = made->arena->chunks; c->room = 16; for (unsigned t = roll(16); t; t--) c->tokens[t - 1] = (struct token){t, n, source + roll(2), 2}; made->arena->chunks = c; }
    made->import_count = from ? 1 + roll(3) : 0; if (from) { made->imports = ARRAY(struct import, made->import_count); for (unsigned n = 0; n < made->import_count; n++) made->imports[n] = (struct import){str(), from, &from->globals[n]}; }
    return made;
}
static NOINLINE void clear_stack(void) { volatile char space[32768]; for (size_t at = 0; at < sizeof space; at++) space[at] = 0; }
int main(int argc, char **argv) {
    unsigned count = argc > 1 ? (unsigned)atoi(argv[1]) : 100;
    state = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
    vm = NEW(struct vm); tombstone = str(); vm->classes[9] = class(NULL); vm->strings = map(0); vm->handle_count = count; vm->handles = ARRAY(struct value, count);
    for (unsigned at = 0; at < count; at++) {
        leaking = at % 5 == 4;
        struct module *made = module(vm->modules); struct fiber *f = fiber(leaking ? NULL : vm->current);
        if (leaking) { for (unsigned n = roll(4); n; n--) { struct breakpoint *b = NEW(struct breakpoint); b->line = 3; b->condition = text(); b->in = f->frames[0].closure->proto; struct trace *t = NEW(struct trace); t->fiber = f; t->at = 1700000000; struct snapshot *s = NEW(struct snapshot); s->of = made; s->count = 3; s->stack = ARRAY(struct value, 3); s->stack[0] = object(f); s->stack[1] = any(1); } continue; }
        made->next = vm->modules; vm->modules = made; vm->current = f; vm->handles[at] = any(1);
        struct breakpoint *b = NEW(struct breakpoint); b->line = at; b->condition = roll(2) ? text() : NULL; b->in = f->frames[0].closure->proto; b->next = vm->breaks; vm->breaks = b;
    }
    clear_stack();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
