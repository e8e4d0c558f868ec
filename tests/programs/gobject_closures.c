/* Leaks 300 closures with two references each, and 200 structures that look like closures. GLib replaces its table of quarks nine times. A class
 * has three interfaces, to which GObject refers only by interior pointers. Prints "ready". */
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

typedef struct { GTypeInterface parent; void (*act)(void); } FirstInterface, SecondInterface, ThirdInterface;
G_DEFINE_INTERFACE(First, first, G_TYPE_OBJECT)
G_DEFINE_INTERFACE(Second, second, G_TYPE_OBJECT)
G_DEFINE_INTERFACE(Third, third, G_TYPE_OBJECT)
static void first_default_init(FirstInterface *made) { (void)made; }
static void second_default_init(SecondInterface *made) { (void)made; }
static void third_default_init(ThirdInterface *made) { (void)made; }

typedef struct { GObject parent; } Actor;
typedef struct { GObjectClass parent; } ActorClass;
static void set_act(FirstInterface *made) { made->act = on_event; }
G_DEFINE_TYPE_WITH_CODE(Actor, actor, G_TYPE_OBJECT, G_IMPLEMENT_INTERFACE(first_get_type(), set_act)
    G_IMPLEMENT_INTERFACE(second_get_type(), set_act) G_IMPLEMENT_INTERFACE(third_get_type(), set_act))
static void actor_init(Actor *made) { (void)made; }
static void actor_class_init(ActorClass *made) { (void)made; }

int main(void) {
    g_type_class_ref(actor_get_type()); /* GObject has a signal with a closure */
    for (int i = 0; i < 300; i++)
        leak(i);
    for (int i = 0; i < 19000; i++) {
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
