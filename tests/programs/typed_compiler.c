/* A program that prints the true type of each of its blocks: the front end of a compiler. Tokens are in a
 * counted array; the syntax tree has tagged unions; symbols are in chained tables and in an intrusive list of their scope; generic vectors
 * and maps have void pointers; the code is an intrusive double list of instructions with flexible operands; passes are callbacks with
 * closures; switch cases have a union Key[].
 *
 *   typed_compiler UNITS SEED */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define NEW(type) ((type *)told(calloc(1, sizeof(type)), #type))
#define ARRAY(type, count) ((type *)told(calloc(count, sizeof(type)), #type "[]"))
#define NOINLINE __attribute__((noinline))
struct link { struct link *prev, *next; };
struct vec { void **items; uint32_t used, room; };
struct entry { struct entry *chain; uint32_t hash; char *key; void *value; };
struct table { struct entry **slots; uint32_t mask, used; };
struct token { int kind, line; union { char *name; double real; long integer; } v; };
struct tokens { struct token *first; size_t count, room; };
enum type_kind { T_INT, T_PTR, T_ARRAY, T_STRUCT, T_FUNC };
struct type { enum type_kind kind; unsigned size; union { struct type *to; struct { struct type *element; unsigned long count; } array; struct { char *tag; struct field *fields; } record; struct { struct type *result; struct type **params; unsigned arity; } func; } u; struct type *next; };
struct field { char *name; struct type *type; unsigned offset, bits; };
struct symbol { struct link in_scope; char *name; struct type *type; struct scope *scope; union { long offset; struct node *init; struct func *func; } u; unsigned char kind; };
struct scope { struct scope *up; struct link symbols; struct table names; unsigned depth; };
enum node_kind { N_NUM, N_STR, N_VAR, N_UN, N_BIN, N_CALL, N_IF, N_BLOCK, N_SWITCH };
struct node {
    enum node_kind kind; int line; struct type *type;
    union { long number; char *string; struct symbol *var; struct { int op; struct node *of; } un; struct { struct node *left, *right; int op; } bin;
        struct { struct node *callee; struct node **args; unsigned count; } call; struct { struct node *cond, *then, *otherwise; } cond; struct vec block; struct cases *cases; } u;
};
union key { long number; char *text; struct node *expr; };
struct cases { struct node *subject; union key *keys; struct node **bodies; unsigned count; int textual; };
struct operand { unsigned char kind, size; uint16_t reg; union { int64_t immediate; struct symbol *symbol; struct block *target; }; };
struct insn { struct link in_block; uint16_t op, count; int line; struct operand operands[]; };
struct block { struct link in_func; struct link insns; unsigned number; struct block *succ[2]; struct bits *live; struct vec phis; };
struct bits { unsigned size; uint64_t words[]; };
struct phi { struct symbol *of; struct block *in; struct operand *args; unsigned count; };
struct func { struct func *next; struct symbol *symbol; struct node *body; struct link blocks; struct scope *scope; struct vec locals; void *analysis; void (*drop)(void *); };
struct dominance { struct block **idom; unsigned count; struct bits *frontier; };
struct liveness { struct range *ranges; unsigned count, rounds; char *note; };
struct range { unsigned from, to; struct symbol *of; };
struct constants { struct table known; unsigned folded; };
struct pass { struct pass *next; const char *name; int (*run)(void *closure, struct func *); void *closure; };
struct dce { unsigned removed; struct vec worklist; };
struct inliner { unsigned limit; struct func *current; struct table done; };
struct scheduler { int model; char *cpu; unsigned *latency; };
struct unit { struct unit *next; char *path; struct tokens tokens; struct scope *global; struct func *funcs; struct table strings; struct diag *diags; };
struct diag { struct diag *next; int line; char *text; struct token *at; };
struct literal { unsigned length; int refs; char *text; };
static struct { struct unit *units; struct pass *passes; struct type *types; struct vec everything; } compiler;
static uint64_t state = 1;
static int leaking;
static unsigned roll(unsigned below) { state = state * 6364136223846793005ul + 1442695040888963407ul; return (unsigned)((state >> 33) % below); }
static NOINLINE void *told(void *block, const char *type) { printf("%lx %s %s\n", (unsigned long)block, leaking ? "leaked" : "reachable", type); return block; }
static NOINLINE char *text(void) { unsigned size = 2 + roll(28); char *made = told(malloc(size + 1), "char[]"); for (unsigned at = 0; at < size; at++) made[at] = (char)('a' + roll(26)); made[size] = 0; return made; }
static void list_init(struct link *head) { head->next = head->prev = head; }
static void list_add(struct link *head, struct link *one) { one->next = head; one->prev = head->prev; head->prev->next = one; head->prev = one; }
static NOINLINE void push(struct vec *vec, void *item) {
    if (vec->used == vec->room) {
        void **wider = malloc((vec->room * 2 + 4) * sizeof *wider);
        if (vec->used) memcpy(wider, vec->items, vec->used * sizeof *wider);
        memset(wider + vec->used, 0, (vec->room * 2 + 4 - vec->used) * sizeof *wider);
        free(vec->items); vec->items = wider; vec->room = vec->room * 2 + 4;
    }
    vec->items[vec->used++] = item;
}
static NOINLINE void put(struct table *table, char *key, void *value) {
    if (!table->slots) { table->mask = 7; table->slots = ARRAY(struct entry *, 8); }
    struct entry *entry = NEW(struct entry);
    entry->hash = roll(1u << 31); entry->key = key; entry->value = value;
    struct entry **slot = &table->slots[entry->hash & table->mask];
    entry->chain = *slot; *slot = entry; table->used++;
}
static NOINLINE struct type *type(int depth) {
    if (!leaking && roll(3) && compiler.types) return compiler.types;
    struct type *made = NEW(struct type);
    made->kind = depth > 0 ? (enum type_kind)roll(5) : T_INT;
    made->size = 1u << roll(4);
    switch (made->kind) {
    case T_INT: break;
    case T_PTR: made->u.to = type(depth - 1); break;
    case T_ARRAY: made->u.array.element = type(depth - 1); made->u.array.count = 1 + roll(100); break;
    case T_STRUCT: { unsigned count = 2 + roll(5); made->u.record.tag = text(); made->u.record.fields = ARRAY(struct field, count); for (unsigned at = 0; at < count; at++) made->u.record.fields[at] = (struct field){text(), type(depth - 1), at * 8, 0}; break; }
    case T_FUNC: made->u.func.result = type(depth - 1); made->u.func.arity = roll(4); if (made->u.func.arity) { made->u.func.params = ARRAY(struct type *, made->u.func.arity); for (unsigned at = 0; at < made->u.func.arity; at++) made->u.func.params[at] = type(depth - 1); } break;
    }
    if (!leaking) { made->next = compiler.types; compiler.types = made; }
    return made;
}
static NOINLINE struct scope *scope(struct scope *up) { struct scope *made = NEW(struct scope); made->up = up; made->depth = up ? up->depth + 1 : 0; list_init(&made->symbols); return made; }
static NOINLINE struct node *node(struct scope *in, int depth);
static NOINLINE struct symbol *symbol(struct scope *in, int depth) {
    struct symbol *made = NEW(struct symbol);
    made->name = text(); made->type = type(2); made->scope = in; made->kind = (unsigned char)roll(3);
    list_add(&in->symbols, &made->in_scope);
    put(&in->names, made->name, made);
    if (made->kind == 0) made->u.offset = -8 * (long)roll(30);
    else if (made->kind == 1 && depth > 0) made->u.init = node(in, depth - 1);
    return made;
}
static struct symbol *any_symbol(struct scope *in) { return in->symbols.next == &in->symbols ? symbol(in, 0) : (struct symbol *)in->symbols.next; }
static NOINLINE struct node *node(struct scope *in, int depth) {
    struct node *made = NEW(struct node);
    made->kind = (enum node_kind)roll(depth > 0 ? 9 : 3);
    made->line = (int)roll(3000);
    made->type = type(1);
    switch (made->kind) {
    case N_NUM: made->u.number = (long)roll(1u << 30); break;
    case N_STR: made->u.string = text(); break;
    case N_VAR: made->u.var = any_symbol(in); break;
    case N_UN: made->u.un.op = (int)roll(5); made->u.un.of = node(in, depth - 1); break;
    case N_BIN: made->u.bin.op = (int)roll(20); made->u.bin.left = node(in, depth - 1); made->u.bin.right = node(in, depth - 1); break;
    case N_CALL: made->u.call.callee = node(in, 0); made->u.call.count = 1 + roll(4); made->u.call.args = ARRAY(struct node *, made->u.call.count); for (unsigned at = 0; at < made->u.call.count; at++) made->u.call.args[at] = node(in, depth - 1); break;
    case N_IF: made->u.cond.cond = node(in, depth - 1); made->u.cond.then = node(in, depth - 1); made->u.cond.otherwise = roll(2) ? node(in, depth - 1) : NULL; break;
    case N_BLOCK: { struct scope *inner = scope(in); symbol(inner, depth - 1); for (unsigned count = 1 + roll(4); count; count--) push(&made->u.block, node(inner, depth - 1)); told(made->u.block.items, "void *[]"); break; }
    case N_SWITCH: {
        struct cases *cases = made->u.cases = NEW(struct cases);
        cases->subject = node(in, 0); cases->textual = (int)roll(2); cases->count = 3 + roll(6);
        cases->keys = ARRAY(union key, cases->count); cases->bodies = ARRAY(struct node *, cases->count);
        for (unsigned at = 0; at < cases->count; at++) {
            if (cases->textual) cases->keys[at].text = text();
            else if (roll(2)) cases->keys[at].expr = node(in, 0);
            else cases->keys[at].number = (long)roll(500);
            cases->bodies[at] = node(in, depth - 1);
        }
        break;
    }
    }
    return made;
}
static NOINLINE struct insn *insn(struct block *in, struct func *func) {
    unsigned count = 1 + roll(4);
    struct insn *made = told(calloc(1, sizeof(struct insn) + count * sizeof(struct operand)), "struct insn");
    made->op = (uint16_t)roll(120); made->count = (uint16_t)count; made->line = (int)roll(3000);
    for (unsigned at = 0; at < count; at++) {
        struct operand *operand = &made->operands[at];
        operand->kind = (unsigned char)roll(4); operand->size = 8;
        if (operand->kind == 0) operand->immediate = roll(1000);
        if (operand->kind == 1) operand->symbol = any_symbol(func->scope);
        if (operand->kind == 2) operand->target = in;
        if (operand->kind == 3) operand->reg = (uint16_t)roll(16);
    }
    list_add(&in->insns, &made->in_block);
    return made;
}
static NOINLINE struct bits *bits(void) { unsigned size = 64 * (1 + roll(5)); struct bits *made = told(calloc(1, sizeof(struct bits) + size / 8), "struct bits"); made->size = size; for (unsigned at = 0; at < size / 64; at++) made->words[at] = state * (at + 1); return made; }
static NOINLINE void blocks(struct func *func) {
    unsigned count = 1 + roll(6);
    struct block *before = NULL;
    for (unsigned at = 0; at < count; at++) {
        struct block *made = NEW(struct block);
        list_init(&made->insns); list_add(&func->blocks, &made->in_func);
        made->number = at; made->succ[0] = before; if (roll(2)) made->live = bits();
        for (unsigned n = 1 + roll(8); n; n--) insn(made, func);
        if (before && roll(3) == 0) { struct phi *phi = NEW(struct phi); phi->of = any_symbol(func->scope); phi->in = made; phi->count = 2; phi->args = ARRAY(struct operand, 2); phi->args[0].kind = 1; phi->args[0].symbol = phi->of; phi->args[1].kind = 2; phi->args[1].target = before; push(&made->phis, phi); told(made->phis.items, "void *[]"); }
        before = made;
    }
}
static void drop_dominance(void *of) { free(of); }
static void drop_liveness(void *of) { (void)of; }
static void drop_constants(void *of) { free(of); abort(); }
static NOINLINE void analyse(struct func *func) {
    struct block *first = (struct block *)func->blocks.next;
    unsigned kind = roll(4);
    if (kind == 0) { struct dominance *made = func->analysis = NEW(struct dominance); made->count = 2 + roll(3); made->idom = ARRAY(struct block *, made->count); for (unsigned at = 0; at < made->count; at++) made->idom[at] = first; made->frontier = bits(); func->drop = drop_dominance; }
    if (kind == 1) { struct liveness *made = func->analysis = NEW(struct liveness); made->count = 1 + roll(5); made->ranges = ARRAY(struct range, made->count); for (unsigned at = 0; at < made->count; at++) made->ranges[at] = (struct range){at, at + 9, any_symbol(func->scope)}; if (roll(2)) made->note = text(); func->drop = drop_liveness; }
    if (kind == 2) { struct constants *made = func->analysis = NEW(struct constants); for (unsigned at = 0; at < 3; at++) { struct literal *literal = NEW(struct literal); literal->text = text(); literal->length = 5; put(&made->known, text(), literal); } func->drop = drop_constants; }
}
static NOINLINE struct func *function(struct scope *global, struct func *next) {
    struct func *made = NEW(struct func);
    made->next = next; made->symbol = symbol(global, 0); made->symbol->kind = 2; made->symbol->u.func = made; made->scope = scope(global);
    list_init(&made->blocks);
    for (unsigned count = 1 + roll(4); count; count--) push(&made->locals, symbol(made->scope, 2));
    told(made->locals.items, "void *[]");
    made->body = node(made->scope, 3);
    blocks(made);
    analyse(made);
    return made;
}
static NOINLINE struct unit *unit(void) {
    struct unit *made = NEW(struct unit);
    made->path = text();
    made->tokens.count = 10 + roll(30); made->tokens.room = made->tokens.count;
    made->tokens.first = ARRAY(struct token, made->tokens.room);
    for (size_t at = 0; at < made->tokens.count; at++) { struct token *token = &made->tokens.first[at]; token->kind = (int)roll(3); token->line = (int)at; if (token->kind == 0) token->v.name = text(); else if (token->kind == 1) token->v.real = roll(100) / 3.0; else token->v.integer = (long)roll(99); }
    made->global = scope(NULL);
    for (unsigned count = 1 + roll(4); count; count--) made->funcs = function(made->global, made->funcs);
    for (unsigned count = roll(6); count; count--) { struct literal *literal = NEW(struct literal); literal->refs = 1; literal->text = text(); literal->length = (unsigned)strlen(literal->text); put(&made->strings, literal->text, literal); }
    for (unsigned count = roll(3); count; count--) { struct diag *diag = NEW(struct diag); diag->next = made->diags; made->diags = diag; diag->line = 3; diag->text = text(); diag->at = &made->tokens.first[roll((unsigned)made->tokens.count)]; }
    return made;
}
static int run_any(void *closure, struct func *func) { return closure && func; }
static NOINLINE void passes(void) {
    for (unsigned at = 0; at < 9; at++) {
        struct pass *made = NEW(struct pass);
        made->name = "pass"; made->run = run_any; made->next = compiler.passes; compiler.passes = made;
        if (at % 3 == 0) { struct dce *dce = made->closure = NEW(struct dce); push(&dce->worklist, compiler.units->funcs); told(dce->worklist.items, "void *[]"); }
        if (at % 3 == 1) { struct inliner *inliner = made->closure = NEW(struct inliner); inliner->limit = 50; inliner->current = compiler.units->funcs; put(&inliner->done, text(), compiler.units->funcs); }
        if (at % 3 == 2) { struct scheduler *scheduler = made->closure = NEW(struct scheduler); scheduler->cpu = text(); scheduler->latency = told(calloc(20, sizeof(unsigned)), "unsigned int[]"); for (int n = 0; n < 20; n++) scheduler->latency[n] = roll(9); }
    }
}
static NOINLINE void clear_stack(void) { volatile char space[32768]; for (size_t at = 0; at < sizeof space; at++) space[at] = 0; }
int main(int argc, char **argv) {
    unsigned units = argc > 1 ? (unsigned)atoi(argv[1]) : 300;
    state = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
    for (unsigned at = 0; at < units; at++) { leaking = at % 5 == 4; struct unit *made = unit(); if (!leaking) { made->next = compiler.units; compiler.units = made; } }
    leaking = 0;
    passes();
    clear_stack();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
