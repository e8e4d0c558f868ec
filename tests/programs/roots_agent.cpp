// A JVM profiler, as an agent, whose maps are never cleaned: what a thread is called and where it began is noted when the thread starts, and
// taken out when it ends; but under another key. A native method prints, of each map, "FIELD OFFSET NODES BLOCKS BYTES".
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <jvmti.h>
#include <malloc.h>
#include <map>
#include <mutex>
#include <new>

static thread_local long *counting; // number of blocks and bytes in the map that is being changed

void *operator new(std::size_t size) {
    void *made = std::malloc(size);
    if (!made)
        std::abort();
    memset(made, 0, malloc_usable_size(made)); // a block is up to 16 bytes longer than requested, and the JVM may have left a pointer in its end
    if (counting) {
        counting[0]++;
        counting[1] += (long)malloc_usable_size(made);
    }
    return made;
}

void operator delete(void *block) noexcept {
    if (block && counting) {
        counting[0]--;
        counting[1] -= (long)malloc_usable_size(block);
    }
    std::free(block);
}

void operator delete(void *block, std::size_t) noexcept { operator delete(block); }

struct Span {
    long began, ended;
};

class Profiler {
public:
    virtual ~Profiler() = default;
    std::mutex lock;
    long threads = 0;
    std::map<long, char *> names; // entries are removed by a key that does not exist
    std::map<long, Span> spans;   // entries are never removed
    long counted[2][2] = {};

    void started(const char *name) {
        std::lock_guard<std::mutex> guard(lock);
        long number = threads++;
        counting = counted[0];
        char *text = (char *)operator new(strlen(name) + 40);
        sprintf(text, "%s: number %ld", name, number);
        names[number] = text;
        counting = counted[1];
        spans[number] = Span{number, 0};
        counting = nullptr;
    }

    void ended() {
        std::lock_guard<std::mutex> guard(lock);
        names.erase(-threads);
    }
};

static Profiler *g_agent;

static void JNICALL on_start(jvmtiEnv *jvmti, JNIEnv *, jthread thread) {
    jvmtiThreadInfo info = {};
    if (jvmti->GetThreadInfo(thread, &info) == JVMTI_ERROR_NONE && info.name) {
        g_agent->started(info.name);
        jvmti->Deallocate((unsigned char *)info.name);
    }
}

static void JNICALL on_end(jvmtiEnv *, JNIEnv *, jthread) { g_agent->ended(); }

extern "C" JNIEXPORT jint JNICALL Agent_OnLoad(JavaVM *vm, char *, void *) {
    jvmtiEnv *jvmti = nullptr;
    if (vm->GetEnv((void **)&jvmti, JVMTI_VERSION_1_2) != JNI_OK)
        return JNI_ERR;
    g_agent = new Profiler;
    jvmtiEventCallbacks callbacks = {};
    callbacks.ThreadStart = on_start;
    callbacks.ThreadEnd = on_end;
    jvmti->SetEventCallbacks(&callbacks, sizeof callbacks);
    jvmti->SetEventNotificationMode(JVMTI_ENABLE, JVMTI_EVENT_THREAD_START, nullptr);
    jvmti->SetEventNotificationMode(JVMTI_ENABLE, JVMTI_EVENT_THREAD_END, nullptr);
    return JNI_OK;
}

extern "C" JNIEXPORT void JNICALL Java_Threads_report(JNIEnv *, jclass) {
    std::lock_guard<std::mutex> guard(g_agent->lock);
    const char *own = (const char *)g_agent;
    std::printf("names %ld %zu %ld %ld\n", (long)((const char *)&g_agent->names - own), g_agent->names.size(), g_agent->counted[0][0],
                g_agent->counted[0][1]);
    std::printf("spans %ld %zu %ld %ld\n", (long)((const char *)&g_agent->spans - own), g_agent->spans.size(), g_agent->counted[1][0],
                g_agent->counted[1][1]);
    std::fflush(stdout);
}
