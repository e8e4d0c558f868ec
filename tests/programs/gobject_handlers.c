/* Instances of GObject with signal handlers. Argument: the number of instances of each sort; there is a chain of
 * three times as many, each owned by the handler of the previous one. Prints the sort of each instance ("lost" or "kept",
 * and a name) with its inverted address, then "ready". */
#include <glib-object.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TYPE_ITEM (app_item_get_type())
G_DECLARE_FINAL_TYPE(AppItem, app_item, APP, ITEM, GObject)
struct _AppItem {
    GObject parent;
    char pad[48];
};
G_DEFINE_TYPE(AppItem, app_item, G_TYPE_OBJECT)

static void app_item_class_init(AppItemClass *class) {
    g_signal_new("closed", G_TYPE_FROM_CLASS(class), G_SIGNAL_RUN_LAST, 0, NULL, NULL, NULL, G_TYPE_NONE, 0);
}

static void app_item_init(AppItem *item) {
    (void)item;
}

enum { MOST = 200 };
AppItem *bus, *kept[3 * MOST];

static void on_closed(AppItem *item, gpointer data) {
    (void)item;
    (void)data;
}

static void unref(gpointer data, GClosure *closure) {
    (void)closure;
    g_object_unref(data);
}

static AppItem *make(const char *sort) {
    AppItem *item = g_object_new(TYPE_ITEM, NULL);
    printf("%s %#lx\n", sort, ~(unsigned long)item);
    return item;
}

/* The handler of `item` owns `data`. */
static void own(AppItem *item, AppItem *data) {
    g_signal_connect_data(item, "closed", G_CALLBACK(on_closed), data, unref, 0);
}

/* The handler of `item` ends when `data` is freed. */
static void watch(AppItem *item, AppItem *data) {
    g_signal_connect_object(item, "closed", G_CALLBACK(on_closed), data, 0);
}

/* A handler of `item` owns `data` with a function that is called when the closure becomes invalid. */
static void own_until_invalid(AppItem *item, AppItem *data, GClosureNotify end) {
    GClosure *closure = g_cclosure_new(G_CALLBACK(on_closed), NULL, NULL);
    g_closure_add_invalidate_notifier(closure, data, end);
    g_signal_connect_closure(item, "closed", closure, FALSE);
}

static void __attribute__((noinline)) fill(int count, int chain) {
    bus = make("kept bus");
    for (AppItem *last = bus, *next; chain-- > 0; last = next) own(last, next = make("kept chain"));
    for (int n = 0; n < count; n++) {
        AppItem *one = make("lost self-owned"), *other;
        own(one, one);
        one = make("lost self-watched");
        watch(one, one);
        watch(bus, make("lost watched-by-bus"));
        watch(make("lost watching-bus"), bus);
        one = make("lost pair"), other = make("lost pair");
        watch(one, other);
        watch(other, one);
        own(make("lost owner"), make("lost owned"));
        kept[3 * n] = make("kept self-owned");
        own(kept[3 * n], kept[3 * n]);
        kept[3 * n + 1] = make("kept owner");
        own(kept[3 * n + 1], one = make("kept owned"));
        own(one, other = make("kept owned-by-owned"));
        own(other, make("kept owned-by-these"));
        own(bus, make("kept owned-by-bus"));
        own_until_invalid(bus, make("kept owned-until-invalid"), unref);
        own_until_invalid(bus, make("kept owned-by-library"), (GClosureNotify)(void (*)(void))g_object_unref);
        kept[3 * n + 2] = make("kept watching-bus");
        watch(kept[3 * n + 2], bus);
        watch(bus, kept[3 * n + 2]);
    }
}

static void __attribute__((noinline)) sweep(void) {
    volatile char waste[1 << 16];
    for (unsigned at = 0; at < sizeof waste; at++) waste[at] = 0;
}

int main(int argc, char **argv) {
    int count = argc > 1 ? atoi(argv[1]) : 0;
    fill(count < MOST ? count : MOST, 3 * count);
    sweep();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
