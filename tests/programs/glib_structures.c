/* Leaks structures of GLib that have no type in memory, and structures of its own that look like some of them. Prints one line for each:
 * "lost TYPE ADDRESS". The types of its own structures are "-". */
#include <glib.h>
#include <stdio.h>
#include <string.h>

#define EACH 300

typedef struct { void **items; guint32 count, room; guint64 users; void *next; } vector; /* the layout of GPtrArray without an element_free_func */
typedef struct { char *text; gsize length, room; } buffer;                             /* the layout of GString */
typedef struct { guint32 id, kind; char *name; } entry;                                /* the layout of GError */

static void *dropped; /* address of the last structure, so that no register contains it */

static void lost(const char *type, void *structure) {
    printf("lost %s %p\n", type, structure);
    dropped = structure;
}

static gint compare(gconstpointer one, gconstpointer other, gpointer data) { return data ? 0 : strcmp(one, other); }

static gboolean tick(gpointer data) { return data != NULL; }

static void leak(int i) {
    GString *text = g_string_new("text");
    GPtrArray *pointers = g_ptr_array_new_with_free_func(g_free);
    GArray *array = g_array_new(FALSE, TRUE, 12);
    GByteArray *bytes = g_byte_array_new();
    GSequence *sequence = g_sequence_new(g_free);
    GTree *tree = g_tree_new_full(compare, NULL, g_free, NULL);
    GHashTable *table = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
    GQueue *queue = g_queue_new();
    GSource *source = g_timeout_source_new(100000);
    gint32 element[3] = {i, i, i};
    for (int k = 0; k <= i % 9; k++) {
        g_string_append_printf(text, " %d", k);
        g_ptr_array_add(pointers, g_strdup_printf("pointer %d", k));
        g_array_append_val(array, element);
        g_byte_array_append(bytes, (guint8 *)element, 5);
        g_sequence_append(sequence, g_strdup("in a sequence"));
        g_tree_insert(tree, g_strdup_printf("key %d", k), NULL);
        g_hash_table_insert(table, g_strdup_printf("key %d", k), NULL);
        g_queue_push_tail(queue, g_strdup("in a queue"));
    }
    g_source_set_callback(source, tick, NULL, NULL);
    lost("GString", text);
    lost("GPtrArray", pointers);
    lost("GArray", array);
    lost("GByteArray", bytes);
    lost("GSequence", sequence);
    lost("GTree", tree);
    lost("GHashTable", table);
    lost("GQueue", queue);
    lost("GSource", source);
    lost("GError", g_error_new(G_FILE_ERROR, G_FILE_ERROR_NOENT, "number %d is missing", i));
    lost("GBytes", g_bytes_new("some bytes of data", 18));
    lost("GDateTime", g_date_time_new_utc(2024, 1 + i % 12, 1 + i % 28, i % 24, 5, 6));
}

static void leak_own(int i) {
    vector *own = g_malloc0(sizeof *own);
    own->items = g_malloc0(16 * sizeof *own->items);
    own->count = own->users = 1 + i % 16;
    own->room = 16;
    lost("-", own);
    buffer *text = g_malloc0(sizeof *text);
    text->text = g_malloc0(64);
    text->length = i % 64;
    text->room = 64;
    lost("-", text);
    entry *one = g_malloc0(sizeof *one);
    one->id = i;
    one->name = g_strdup("name of an entry");
    lost("-", one);
}

int main(int argc, char **argv) {
    for (int i = 0; i < EACH; i++)
        argc > 1 && argv[1][0] == 'o' ? leak_own(i) : leak(i);
    dropped = NULL;
    puts("ready");
    fflush(stdout);
    g_usleep(G_MAXULONG);
    return 0;
}
