/* Leaks 300 closures with two references each, and 200 structures that look like closures. GLib replaces its table of quarks twice. Prints
 * "ready". */
#include <glib-object.h>
#include <stdio.h>

typedef struct { void (*init)(void); void *data; void *unused[2]; guint users; void (*call)(void); void *context, *list, *callback; } own;

static void *dropped; /* address of the last structure, so that no register contains it */

static void on_event(void) {}

static void leak(int i) {
    GClosure *closure = g_cclosure_new(on_event, NULL, NULL);
    g_closure_set_marshal(closure, g_cclosure_marshal_VOID__VOID);
    g_closure_sink(g_closure_ref(closure));
    dropped = closure;
    if (i % 3) {
        own *one = g_malloc0(sizeof *one);
        one->users = 1;
        one->call = on_event;
        dropped = one;
    }
}

int main(void) {
    g_type_class_ref(G_TYPE_INITIALLY_UNOWNED); /* its class has signals with closures */
    for (int i = 0; i < 300; i++)
        leak(i);
    for (int i = 0; i < 5000; i++) {
        char name[32];
        g_snprintf(name, sizeof name, "quark-%d", i);
        g_quark_from_string(name);
    }
    dropped = NULL;
    puts("ready");
    fflush(stdout);
    g_usleep(G_MAXULONG);
    return 0;
}
