/* Leaks COUNT buffers, caps, messages, events and lists of tags of GStreamer, and keeps as many messages. The functions are declared here,
   so that no headers of GStreamer are needed. Prints "lost TYPE ADDRESS" and "kept TYPE ADDRESS", with complemented addresses, then "ready". */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void gst_init(int *count, char ***words);
void *gst_buffer_new_allocate(void *allocator, size_t size, void *parameters);
size_t gst_buffer_memset(void *buffer, size_t offset, uint8_t value, size_t size);
void *gst_caps_new_simple(const char *media, const char *field, ...);
void *gst_structure_new_empty(const char *name);
void *gst_message_new_application(void *source, void *structure);
void *gst_event_new_eos(void);
void *gst_tag_list_new_empty(void);

enum { COUNT = 200, INT = 6 << 2 /* G_TYPE_INT */ };
static uintptr_t lost[5 * COUNT], *at = lost;
static void *kept[COUNT];

static void __attribute__((noinline)) fill(void) {
    for (int number = 0; number < COUNT; number++) {
        void *buffer = gst_buffer_new_allocate(NULL, 100, NULL);
        gst_buffer_memset(buffer, 0, 0, 100);
        *at++ = ~(uintptr_t)buffer;
        *at++ = ~(uintptr_t)gst_caps_new_simple("video/x-raw", "width", (size_t)INT, number, NULL);
        *at++ = ~(uintptr_t)gst_message_new_application(NULL, gst_structure_new_empty("lost"));
        *at++ = ~(uintptr_t)gst_event_new_eos();
        *at++ = ~(uintptr_t)gst_tag_list_new_empty();
        kept[number] = gst_message_new_application(NULL, gst_structure_new_empty("kept"));
    }
}

static void __attribute__((noinline)) sweep(void) {
    volatile char waste[1 << 16];
    for (unsigned place = 0; place < sizeof waste; place++) waste[place] = 0;
}

int main(int count, char **words) {
    static const char *const names[] = {"GstBuffer", "GstCaps", "GstMessage", "GstEvent", "GstTagList"};
    gst_init(&count, &words);
    fill();
    sweep();
    for (int number = 0; number < 5 * COUNT; number++) printf("lost %s %#zx\n", names[number % 5], (size_t)lost[number]);
    for (int number = 0; number < COUNT; number++) printf("kept GstMessage %#zx\n", ~(size_t)(uintptr_t)kept[number]);
    printf("ready\n");
    fflush(stdout);
    for (;;) pause();
}
