/* A program that prints the true type of each of its blocks, as typed_truth.c does. Most labels are truncated: they
 * have only the first members of their struct. findleaks knows this only after it visited the pointers to notes. Notes are behind void pointers. None of the blocks is leaked.
 *
 *   typed_labels NOTES SEED */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
struct label {
    char *text;
    struct label *next;
    long number;
    double sizes[8];
    struct note *origin;
};
struct note {
    struct label *label;
    double weight;
    long number;
};
struct mark {
    double weight;
    long number;
    struct label *label;
};
struct holder {
    struct holder *next;
    int kind;
    void *content;
};
struct label *labels;
struct holder *holders;
static void *told(void *block, const char *type) {
    printf("%lx block %s\n", (unsigned long)block, type);
    return block;
}
static struct label *make_label(int number) {
    static char text[] = "the text of all labels";
    size_t size = number % 8 ? offsetof(struct label, sizes) : sizeof(struct label);
    struct label *made = told(calloc(1, size), "struct label");
    made->text = text;
    made->next = labels;
    made->number = number;
    return labels = made;
}
int main(int count, char **words) {
    int notes = count > 1 ? atoi(words[1]) : 100;
    setvbuf(stdout, 0, _IOFBF, 1 << 16);
    for (int at = 0; at < notes; at++) {
        struct label *label = make_label(at);
        struct holder *holder = told(calloc(1, sizeof *holder), "struct holder");
        holder->kind = at % 3;
        if (holder->kind == 2) {
            /* glibc returns a larger block, too, if it does not split a chunk. */
            size_t more = at % 4 ? 0 : 16;
            struct note *note = holder->content = told(calloc(1, sizeof *note + more), "struct note");
            *note = (struct note){label, 0.5 * at, at};
        } else if (holder->kind) {
            struct mark *mark = holder->content = told(calloc(1, sizeof *mark), "struct mark");
            *mark = (struct mark){0.25 * at, at, label};
        }
        holder->next = holders;
        holders = holder;
    }
    printf("ready\n");
    fflush(stdout);
    pause();
    return 0;
}
