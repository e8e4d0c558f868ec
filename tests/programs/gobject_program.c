/* A program with GObjects and GLib's containers. Arguments: numbers of sessions that are retained by a table, leaked with one reference, in
   leaked cycles of two, retained by a signal handler, retained by a handler of their own signal, and retained by a timeout; of variants that
   are leaked; of elements of each other container; of sources that are leaked after g_source_destroy(); of sessions that are retained by a
   handler of a session in the table. Prints the address of `bus`, then "ready". */
#include <glib-object.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* A text in a block with zeros after it: after the end of a text, the block of g_strdup() may contain half a pointer of former content. */
static char *text_of(const char *format, int number) {
    char *made = g_malloc0(40);
    g_snprintf(made, 40, format, number);
    return made;
}

#define TYPE_SESSION (app_session_get_type())
G_DECLARE_DERIVABLE_TYPE(AppSession, app_session, APP, SESSION, GObject)
struct _AppSessionClass {
    GObjectClass parent;
};
typedef struct {
    char *user;
    guint8 buffer[200];
} AppSessionPrivate; /* stored before the instance in the same block */
G_DEFINE_TYPE_WITH_PRIVATE(AppSession, app_session, G_TYPE_OBJECT)

static void finalize(GObject *object) {
    AppSessionPrivate *its = app_session_get_instance_private(APP_SESSION(object));
    g_free(its->user);
    G_OBJECT_CLASS(app_session_parent_class)->finalize(object);
}

static void app_session_class_init(AppSessionClass *class) {
    G_OBJECT_CLASS(class)->finalize = finalize;
    g_signal_new("closed", G_TYPE_FROM_CLASS(class), G_SIGNAL_RUN_LAST, 0, NULL, NULL, NULL, G_TYPE_NONE, 0);
}

static void app_session_init(AppSession *session) {
    ((AppSessionPrivate *)app_session_get_instance_private(session))->user = text_of("user%d@example.org", 1);
}

#define TYPE_CACHE (app_cache_get_type())
G_DECLARE_FINAL_TYPE(AppCache, app_cache, APP, CACHE, GObject)
struct _AppCache {
    GObject parent;
    GHashTable *numbers;
    GQueue queue;
};
G_DEFINE_TYPE(AppCache, app_cache, G_TYPE_OBJECT)

static void app_cache_class_init(AppCacheClass *class) {
    (void)class;
}

static void app_cache_init(AppCache *cache) {
    cache->numbers = g_hash_table_new(g_direct_hash, g_direct_equal);
    g_queue_init(&cache->queue);
}

static GHashTable *sessions;
static AppSession *bus;
static AppCache *cache;
static GTree *tree;
static GPtrArray *pointers;
static GArray *array;
static GList *list;
static GSList *slist;

static void on_closed(AppSession *session, gpointer data) {
    (void)session;
    (void)data;
}

static gboolean expired(gpointer data) {
    return data == NULL;
}

static AppSession *create(void) {
    return g_object_new(TYPE_SESSION, NULL);
}

static void unref(gpointer data, GClosure *closure) {
    (void)closure;
    g_object_unref(data);
}

static int compare(gconstpointer one, gconstpointer other, gpointer data) {
    (void)data;
    return g_strcmp0(one, other);
}

/* g_source_unref() is missing: the context still lists the source, but does not count a reference to it. */
static void __attribute__((noinline)) destroy_source(void) {
    GSource *source = g_timeout_source_new(1000);
    g_source_set_callback(source, expired, NULL, NULL);
    g_source_attach(source, NULL);
    g_source_destroy(source);
}

static void __attribute__((noinline)) fill(const int *counts) {
    bus = create();
    cache = g_object_new(TYPE_CACHE, NULL);
    sessions = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_object_unref);
    for (int n = 0; n < counts[0]; n++) {
        AppSession *one = create();
        g_hash_table_insert(sessions, text_of("session %d", n), one);
        if (n < counts[9]) g_signal_connect_data(one, "closed", G_CALLBACK(on_closed), create(), unref, 0);
    }
    for (int n = 0; n < counts[1]; n++) create();
    for (int n = 0; n < counts[2]; n++) {
        AppSession *one = create(), *other = create();
        g_object_set_data_full(G_OBJECT(one), "peer", other, g_object_unref);
        g_object_set_data_full(G_OBJECT(other), "peer", one, g_object_unref);
    }
    for (int n = 0; n < counts[3]; n++) g_signal_connect_data(bus, "closed", G_CALLBACK(on_closed), create(), unref, 0);
    for (int n = 0; n < counts[4]; n++) {
        AppSession *one = create();
        g_signal_connect_data(one, "closed", G_CALLBACK(on_closed), one, unref, 0);
    }
    for (int n = 0; n < counts[5] || n < counts[8]; n++) {
        if (n < counts[8]) destroy_source();
        if (n < counts[5]) g_timeout_add_full(0, 3600000, expired, create(), g_object_unref);
    }
    for (int n = 0; n < counts[6]; n++) g_variant_ref_sink(g_variant_new("(si)", "name", n));
    tree = g_tree_new_full(compare, NULL, g_free, NULL);
    pointers = g_ptr_array_new_with_free_func(g_free);
    array = g_array_new(FALSE, FALSE, 12);
    for (int n = 0; n < counts[7]; n++) {
        guint32 element[3] = {n, n, n};
        g_hash_table_insert(cache->numbers, GINT_TO_POINTER(n + 1), GINT_TO_POINTER(n));
        g_queue_push_tail(&cache->queue, text_of("queued %d", n));
        g_tree_insert(tree, text_of("key %05d", n * 7919 % 10007), NULL);
        g_ptr_array_add(pointers, text_of("pointed to %d", n));
        g_array_append_val(array, element);
        list = g_list_prepend(list, text_of("listed %d", n));
        slist = g_slist_prepend(slist, text_of("listed, too %d", n));
    }
}

static void __attribute__((noinline)) sweep(void) {
    volatile char waste[1 << 16];
    for (unsigned at = 0; at < sizeof waste; at++) waste[at] = 0;
}

int main(int argc, char **argv) {
    int counts[10] = {0};
    for (int at = 1; at < argc && at <= 10; at++) counts[at - 1] = atoi(argv[at]);
    fill(counts);
    sweep();
    printf("%p\nready\n", (void *)bus);
    fflush(stdout);
    for (;;) pause();
}
