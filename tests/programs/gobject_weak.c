/* Leaks 3,000 instances of GSimpleAction: 1,000 of them have a signal handler whose data is the instance itself, 500 have a weak reference,
 * 500 have a toggle reference, and 1,000 have a GWeakRef in leaked memory or in an array. An array keeps 3,000 more instances of the same
 * kinds. Prints "ready". */
#include <gio/gio.h>
#include <stdio.h>
#include <unistd.h>

enum { COUNT = 1000 };
GSimpleAction *kept[3 * COUNT];
static GWeakRef references[COUNT];

static void ended(gpointer data, GObject *instance) {
    (void)data;
    (void)instance;
}

static void activated(GSimpleAction *action, GVariant *parameter, gpointer data) {
    (void)action;
    (void)parameter;
    (void)data;
}

static void toggled(gpointer data, GObject *instance, gboolean is_last) {
    (void)data;
    (void)instance;
    (void)is_last;
}

static __attribute__((noinline)) GSimpleAction *make(int number) {
    GSimpleAction *action = g_simple_action_new("action", NULL);
    if (number < COUNT)
        g_signal_connect(action, "activate", G_CALLBACK(activated), action);
    else if (number < 2 * COUNT)
        number % 2 ? g_object_weak_ref((GObject *)action, ended, NULL)
                   : (g_object_add_toggle_ref((GObject *)action, toggled, kept), g_object_unref(action));
    else
        g_weak_ref_init(number % 2 ? g_new0(GWeakRef, 1) : &references[number - 2 * COUNT], action);
    return action;
}

int main(void) {
    for (int number = 0; number < 3 * COUNT; number++) {
        make(number);
        kept[number] = make(number);
    }
    puts("ready");
    fflush(stdout);
    for (;;)
        pause();
}
