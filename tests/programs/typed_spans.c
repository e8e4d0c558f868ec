/* A program with arrays of structs without pointers, whose length is in a member beside the pointer, and with structs without pointers that
 * are followed by their data. It prints the true type of each block.
 *
 *   typed_spans COUNT */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NOINLINE __attribute__((noinline))

struct span { int start, length, color; };
struct line { char *text; struct span *spans; int number, row; struct line *next; };
struct packet { int kind, id; };
struct message { struct message *next; struct packet *packet; int bytes; };
struct glyph { double width, height; };
struct run { struct run *next; long count; struct glyph *glyphs; };
static struct { struct line *lines; struct message *messages; struct run *runs; } editor;

static void *tell(void *block, const char *type) { printf("%lx - %s\n", (unsigned long)block, type); return block; }

static NOINLINE void add_line(int at) {
    struct line *line = tell(calloc(1, sizeof *line), "struct line");
    line->number = 3 + at % 9;
    line->row = at;
    line->spans = tell(calloc(line->number, sizeof *line->spans), "struct span[]");
    for (int span = 0; span < line->number; span++) line->spans[span] = (struct span){span * 3, 2, span % 8};
    line->next = editor.lines;
    editor.lines = line;
}

static NOINLINE void add_message(int at) {
    struct message *message = tell(calloc(1, sizeof *message), "struct message");
    message->bytes = 20 + at * 13 % 100;
    message->packet = tell(malloc(sizeof *message->packet + message->bytes), "struct packet");
    memset(message->packet, 1 + at % 7, sizeof *message->packet + message->bytes);
    message->packet->kind = at % 5;
    message->next = editor.messages;
    editor.messages = message;
}

static NOINLINE void add_run(int at) {
    struct run *run = tell(calloc(1, sizeof *run), "struct run");
    run->count = 2 + at % 6;
    run->glyphs = tell(calloc(run->count, sizeof *run->glyphs), "struct glyph[]");
    for (int glyph = 0; glyph < run->count; glyph++) run->glyphs[glyph] = (struct glyph){1.5 * glyph, 2.25};
    run->next = editor.runs;
    editor.runs = run;
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 100;
    for (int at = 0; at < count; at++) add_line(at), add_message(at), add_run(at);
    puts("ready");
    fflush(stdout);
    pause();
}
