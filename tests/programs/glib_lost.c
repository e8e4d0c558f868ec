/* Leaks structures to which GLib refers without counting a reference, and others without a type in memory. Prints for each type how many
 * are leaked, "kept" and an address of each block that must be in use, then "ready". */
#include <gio/gio.h>
#include <stdio.h>
#include <unistd.h>

enum { EACH = 100, CONTEXTS = 20 };

GMainContext *kept; /* not static: the compiler must store it */
GSource *kept_source; /* the only way to a main context: g_source_get_context() */
GObject *toggled[3]; /* GLib stores a flag in the pointers to the data of these objects */
static guintptr proxies[3]; /* inverted addresses, which are not references */

static void on_event(void) {}
static void release(void *data, GClosure *closure) { (void)closure, g_free(data); }
static gboolean on_timer(gpointer data) { return data != NULL; }

/* GObject keeps the list of handlers of an instance after the last handler is disconnected. */
static void lose_action(void) {
    GSimpleAction *action = g_simple_action_new("lost", NULL);
    g_signal_handler_disconnect(action, g_signal_connect(action, "activate", G_CALLBACK(on_event), NULL));
}

/* This closure is not connected to a signal, so it has no marshaller. */
static void lose_closure(void) { g_closure_sink(g_closure_ref(g_cclosure_new(on_event, g_malloc0(200), release))); }

static void lose_bytes(void) {
    GBytes *all = g_bytes_new_take(g_malloc0(300), 300);
    g_bytes_new_from_bytes(all, 100, 50);
    g_bytes_unref(all);
}

static GMainContext *make_context(void) {
    GMainContext *context = g_main_context_new();
    GSource *source = g_timeout_source_new(3600000);
    g_source_set_callback(source, on_timer, g_malloc0(400), g_free);
    g_source_attach(source, context);
    g_source_unref(source);
    return context;
}

static void on_toggle(gpointer data, GObject *object, gboolean is_last) { (void)data, (void)object, (void)is_last; }

static void __attribute__((noinline)) keep(void) {
    for (int i = 0; i < 3; i++) {
        toggled[i] = G_OBJECT(g_simple_action_new("toggled", NULL));
        for (int key = 0; key < 4 * i; key++)
            g_object_set_data(toggled[i], g_intern_string((char[]){'a' + key, 0}), toggled);
        gpointer proxy = g_malloc0(600);
        proxies[i] = ~(guintptr)proxy;
        g_object_add_toggle_ref(toggled[i], on_toggle, proxy);
    }
    kept = make_context();
    kept_source = g_timeout_source_new(3600000);
    g_source_attach(kept_source, g_main_context_new());
}

static void __attribute__((noinline)) lose(void) {
    for (int i = 0; i < EACH; i++) {
        lose_action();
        lose_closure();
        lose_bytes();
        g_io_channel_unix_new(0);
        if (i < CONTEXTS)
            make_context();
    }
    for (int i = 0; i < EACH; i++) { /* these contexts have no sources, and only a loop refers to each */
        GMainContext *context = g_main_context_new();
        g_main_loop_new(context, FALSE);
        g_main_context_unref(context);
    }
}

static void __attribute__((noinline)) sweep(void) {
    volatile char waste[1 << 16];
    for (unsigned i = 0; i < sizeof waste; i++)
        waste[i] = 0;
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    keep();
    lose();
    make_context(); /* registers and variables of GLib may refer to the last context */
    sweep();
    printf("%d GSimpleAction\n%d GClosure of on_event\n%d GBytes\n%d GIOChannel\n", EACH, EACH, EACH, EACH);
    printf("%d GMainContext\n%d GMainLoop\n", CONTEXTS, EACH);
    for (int i = 0; i < 3; i++)
        printf("kept %p\n", (void *)~proxies[i]);
    printf("kept %p\nkept %p\nready\n", (void *)kept, (void *)g_source_get_context(kept_source));
    for (;;)
        pause();
}
