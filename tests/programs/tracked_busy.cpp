/* Threads that allocate and free all the time, while signals arrive and children are forked that do the same.
 * usage: tracked_busy THREADS: prints "ready"; from then on, every tenth of a second, how many rounds all threads made, and how many
 * children have ended. Ends with status 3 if a child did not end well, and with 4 if a block does not hold what was written to it. */
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <pthread.h>
#include <signal.h>
#include <stdexcept>
#include <string>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#define NOINLINE __attribute__((noinline, noclone))
static std::atomic<long> rounds, children, alarms;
static std::mutex failing; /* if jemalloc's operator new fails, it takes a lock, which a child would inherit locked */

NOINLINE static void churn(unsigned seed) {
    std::vector<std::string> words;
    for (unsigned i = 0; i < 20; i++)
        words.emplace_back(16 + (seed * 7 + i * 13) % 300, (char)('a' + i));
    for (unsigned i = 0; i < 20; i++)
        if (words[i].size() != 16 + (seed * 7 + i * 13) % 300 || words[i].back() != (char)('a' + i))
            _exit(4);
    char *volatile grows = (char *)malloc(8);
    memcpy(grows, "grows..", 8);
    for (size_t size = 16; size < 4096; size *= 2)
        grows = (char *)realloc(grows, size);
    if (memcmp(grows, "grows..", 8))
        _exit(4);
    free(grows);
    try {
        std::lock_guard<std::mutex> hold(failing);
        static volatile size_t much = (size_t)1 << 62;
        void *volatile made = ::operator new(much);
        (void)made;
        _exit(4);
    } catch (const std::bad_alloc &) {
    }
    void *aligned = nullptr;
    if (posix_memalign(&aligned, 256, 100) || (unsigned long)aligned % 256)
        _exit(4);
    free(aligned);
    char *zeros = (char *)calloc(10, 10);
    for (int i = 0; i < 100; i++)
        if (zeros[i])
            _exit(4);
    memset(zeros, 1, 100);
    free(zeros);
}

static void *work(void *argument) {
    for (unsigned seed = (unsigned)(long)argument;; seed++) {
        churn(seed);
        rounds++;
    }
    return nullptr;
}

/* Deep frames, and allocations below them in a child, where stubs record nothing. */
static void *fork_children(void *) {
    for (unsigned turn = 0;; turn++) {
        failing.lock();
        pid_t child = fork();
        failing.unlock();
        if (child < 0)
            _exit(5);
        if (!child) {
            for (unsigned i = 0; i < 20; i++)
                churn(turn + i);
            _exit(0);
        }
        int how = 0;
        if (waitpid(child, &how, 0) != child || how)
            _exit(3);
        children++;
        usleep(5000);
    }
    return nullptr;
}

static void on_alarm(int) { alarms++; }

int main(int count, char **words) {
    int threads = count > 1 ? atoi(words[1]) : 1;
    struct sigaction action = {};
    action.sa_handler = on_alarm;
    action.sa_flags = SA_RESTART;
    sigaction(SIGALRM, &action, nullptr);
    pthread_t made;
    for (long i = 0; i < threads; i++)
        if (pthread_create(&made, nullptr, work, (void *)i))
            return 1;
    if (pthread_create(&made, nullptr, fork_children, nullptr))
        return 1;
    setvbuf(stdout, nullptr, _IOLBF, 1 << 12);
    puts("ready");
    struct itimerval often = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &often, nullptr);
    for (;;) {
        printf("%ld %ld\n", rounds.load(), children.load());
        timespec pause = {0, 100000000};
        nanosleep(&pause, nullptr);
    }
}
