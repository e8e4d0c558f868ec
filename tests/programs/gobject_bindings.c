/* A model whose property `name` is bound to 40 items in a list, and to 30 items that are leaked. The
   numbers 1 to 500 are in a sequence. 20 bindings
   were removed, and are leaked. Three more sequences are in an array. Prints "ready". */
#include <glib-object.h>
#include <stdio.h>
#include <unistd.h>

enum { KEPT = 40, LOST = 30, REMOVED = 20, NAME = 1 };

typedef struct {
    GObject parent;
    char *name;
} Item;
typedef struct {
    GObjectClass parent;
} ItemClass;
G_DEFINE_TYPE(Item, item, G_TYPE_OBJECT)

static void set_property(GObject *object, guint id, const GValue *value, GParamSpec *spec) {
    (void)id, (void)spec;
    g_free(((Item *)object)->name);
    ((Item *)object)->name = g_value_dup_string(value);
}

static void get_property(GObject *object, guint id, GValue *value, GParamSpec *spec) {
    (void)id, (void)spec;
    g_value_set_string(value, ((Item *)object)->name);
}

static void item_class_init(ItemClass *class) {
    GObjectClass *object = G_OBJECT_CLASS(class);
    object->set_property = set_property;
    object->get_property = get_property;
    g_object_class_install_property(object, NAME, g_param_spec_string("name", "", "", NULL, G_PARAM_READWRITE));
}

static void item_init(Item *item) { (void)item; }

GObject *model; /* not static: the compiler must store it */
GList *kept;
GSequence *sequence;
GSequence *sequences[3];

static void __attribute__((noinline)) bind(int count, int keep) {
    for (int number = 0; number < count; number++) {
        GObject *item = g_object_new(item_get_type(), NULL);
        g_object_bind_property(model, "name", item, "name", number % 2 ? G_BINDING_DEFAULT : G_BINDING_BIDIRECTIONAL);
        if (keep) kept = g_list_prepend(kept, item);
    }
}

/* Removes 20 bindings, but not the reference to each. */
static void __attribute__((noinline)) unbind(void) {
    for (int number = 0; number < REMOVED; number++) {
        GBinding *one = g_object_ref(g_object_bind_property(model, "name", kept->data, "name", G_BINDING_DEFAULT));
        g_binding_unbind(one);
    }
}

static void __attribute__((noinline)) sweep(void) {
    volatile char waste[1 << 16];
    for (unsigned i = 0; i < sizeof waste; i++) waste[i] = 0;
}

int main(void) {
    model = g_object_new(item_get_type(), NULL);
    bind(LOST, 0);
    bind(KEPT, 1);
    sequence = g_sequence_new(NULL);
    for (int number = 1; number <= 500; number++) g_sequence_append(sequence, GINT_TO_POINTER(number));
    for (int one = 0; one < 3; one++) {
        sequences[one] = g_sequence_new(one == 1 ? g_free : NULL);
        for (int number = 0; number < 1000; number++) g_sequence_append(sequences[one], one == 1 ? g_malloc(8) : GINT_TO_POINTER(number));
    }
    unbind();
    sweep();
    puts("ready");
    fflush(stdout);
    for (;;) pause();
}
