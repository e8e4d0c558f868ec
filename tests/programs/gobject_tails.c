/* Keeps 300 objects, and leaks 300. The last word in the block of each kept object refers to a leaked object; the instance ends before this
   word. Prints the numbers of leaked and kept objects, then "ready". */
#include <glib-object.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NUMBER 300

typedef struct {
    GObject parent;
    void *last; /* a Large has 32 bytes */
} Large;
typedef struct {
    GObjectClass parent;
} LargeClass;
G_DEFINE_TYPE(Large, large, G_TYPE_OBJECT)

static void large_class_init(LargeClass *class) {
    (void)class;
}

static void large_init(Large *large) {
    (void)large;
}

typedef struct {
    GObject parent; /* 24 bytes in a block of 32 */
} Small;
typedef struct {
    GObjectClass parent;
} SmallClass;
G_DEFINE_TYPE(Small, small, G_TYPE_OBJECT)

static void small_class_init(SmallClass *class) {
    (void)class;
}

static void small_init(Small *small) {
    (void)small;
}

GObject *kept[NUMBER];

__attribute__((noinline)) static void fill(void) {
    Large *used[NUMBER];
    for (int number = 0; number < NUMBER; number++) {
        used[number] = g_object_new(large_get_type(), NULL);
        used[number]->last = g_object_new(large_get_type(), NULL); /* without g_object_unref */
    }
    for (int number = 0; number < NUMBER; number++)
        g_object_unref(used[number]);
    for (int number = 0; number < NUMBER; number++)
        kept[number] = g_object_new(small_get_type(), NULL);
    memset(used, 0, sizeof used);
}

int main(void) {
    fill();
    char rest[1 << 14];
    memset(rest, 0, sizeof rest);
    __asm__ volatile("" : : "r"(rest) : "memory");
    printf("%d %d\nready\n", NUMBER, NUMBER);
    fflush(stdout);
    for (;;)
        pause();
}
