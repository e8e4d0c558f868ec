/* The first process of an emulated machine: runs programs one by one up to their line "ready" (or until they crash), has the kernel dump a
 * core of each, and switches the machine off. tests/support/foreign.py writes what it reads, and describes it.
 *
 * /modules        names of kernel modules to load, in order, which lie beside it
 * "work" (9p)     a folder a program: `command` (NUL-terminated words), `environment` (likewise); gets stdout, stderr, core, status
 * "root" (9p)     the tree that the programs see as /, the folder above as /programs
 * $patience       seconds for a program, from the kernel's command line */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CORE "/root/tmp/core"
#define MOST_WORDS 64

static time_t patience(void) {
    const char *seconds = getenv("patience");
    return seconds ? atol(seconds) : 600;
}

__attribute__((noreturn, format(printf, 1, 2))) static void fail(const char *form, ...) {
    int error = errno;
    va_list values;
    va_start(values, form);
    vprintf(form, values);
    va_end(values);
    printf(": %s\n", strerror(error));
    fflush(stdout);
    reboot(RB_POWER_OFF);
    for (;;) pause();
}

static void mounted(const char *what, const char *where, const char *type, const char *options) {
    mkdir(where, 0755);
    if (mount(what, where, type, type ? 0 : MS_BIND, options)) fail("mount of %s on %s", what, where);
}

static void load_modules(void) {
    char name[256], *line;
    FILE *list = fopen("/modules", "r");
    if (!list) fail("/modules");
    while ((line = fgets(name, sizeof name, list))) {
        line[strcspn(line, "\n")] = 0;
        int file = open(line, O_RDONLY);
        if (file < 0 || syscall(SYS_finit_module, file, "", 0)) fail("module %s", line);
        close(file);
    }
    fclose(list);
}

/* The words of a file, ended by NULL. They are never freed. */
static char **words_of(const char *path) {
    char **words = calloc(MOST_WORDS + 1, sizeof *words), *text = NULL;
    size_t room = 0, count = 0;
    FILE *file = fopen(path, "r");
    if (!words || !file) fail("%s", path);
    while (count < MOST_WORDS && getdelim(&text, &room, 0, file) > 0) words[count++] = strdup(text);
    fclose(file);
    free(text);
    return words;
}

static pid_t start(const char *folder, int output) {
    char path[512];
    snprintf(path, sizeof path, "/programs/%s/command", folder);
    char **command = words_of(path);
    snprintf(path, sizeof path, "/programs/%s/environment", folder);
    char **environment = words_of(path);
    pid_t pid = fork();
    if (pid) return pid;
    snprintf(path, sizeof path, "/programs/%s", folder);
    if (chroot("/root") || chdir(path)) _exit(126);
    dup2(open("/dev/null", O_RDONLY), 0);
    dup2(output, 1);
    dup2(open("stderr", O_WRONLY | O_CREAT | O_APPEND, 0644), 2);
    struct rlimit unlimited = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_CORE, &unlimited);
    execve(command[0], command, environment);
    _exit(127);
}

/* Copy what comes from the pipe into a file, until a line "ready" or the end. Whether it is ready. */
static int wait_until_ready(int pipe_end, const char *folder) {
    char path[512], data[65536], last[6] = "";
    snprintf(path, sizeof path, "/programs/%s/stdout", folder);
    int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (file < 0) fail("%s", path);
    time_t limit = time(NULL) + patience();
    int ready = 0;
    while (!ready && time(NULL) < limit) {
        struct pollfd wanted = {pipe_end, POLLIN, 0};
        if (poll(&wanted, 1, 1000) <= 0) continue;
        ssize_t got = read(pipe_end, data, sizeof data);
        if (got <= 0 || write(file, data, (size_t)got) != got) break;
        for (ssize_t i = got > 6 ? got - 6 : 0; i < got; i++) {
            memmove(last, last + 1, 5);
            last[5] = data[i];
        }
        ready = !memcmp(last, "ready\n", 6);
    }
    close(file);
    return ready;
}

/* Whether no thread runs. What distinguishes two looks (how long each ran) is added up in `mark`. */
static int all_sleep(pid_t pid, unsigned long long *mark) {
    char path[512], text[1024];
    int sleep = 1;
    *mark = 0;
    snprintf(path, sizeof path, "/proc/%d/task", pid);
    DIR *tasks = opendir(path);
    for (struct dirent *one; tasks && (one = readdir(tasks));) {
        if (one->d_name[0] == '.') continue;
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/stat", pid, one->d_name);
        FILE *file = fopen(path, "r");
        if (file && fgets(text, sizeof text, file) && strrchr(text, ')')) sleep &= !strchr("RD", strrchr(text, ')')[2]);
        if (file) fclose(file);
        unsigned long long ran = 0, waited = 0;
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/schedstat", pid, one->d_name);
        file = fopen(path, "r");
        if (file && fscanf(file, "%llu %llu", &ran, &waited) == 2) *mark += ran;
        if (file) fclose(file);
    }
    if (tasks) closedir(tasks);
    return sleep;
}

/* Copy the core, with its holes. */
static void keep_core(const char *folder) {
    static char data[1 << 20];
    char path[512];
    int from = open(CORE, O_RDONLY);
    if (from < 0) fail("%s made no core", folder);
    snprintf(path, sizeof path, "/programs/%s/core", folder);
    int to = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    off_t end = lseek(from, 0, SEEK_END), at = 0;
    if (to < 0 || ftruncate(to, end)) fail("%s", path);
    while ((at = lseek(from, at, SEEK_DATA)) >= 0 && at < end) {
        off_t hole = lseek(from, at, SEEK_HOLE);
        while (at < hole) {
            size_t size = (size_t)(hole - at) < sizeof data ? (size_t)(hole - at) : sizeof data;
            ssize_t got = pread(from, data, size, at);
            if (got <= 0 || pwrite(to, data, (size_t)got, at) != got) fail("copy of the core of %s", folder);
            at += got;
        }
    }
    close(from);
    close(to);
    unlink(CORE);
}

static void run(const char *folder) {
    int ends[2], status = 0;
    char path[512];
    if (pipe2(ends, O_CLOEXEC)) fail("pipe");
    pid_t pid = start(folder, ends[1]);
    close(ends[1]);
    int ready = wait_until_ready(ends[0], folder);
    time_t limit = time(NULL) + patience();
    for (unsigned long long before = 1, now = 0; ready && before != now && time(NULL) < limit;) {
        int asleep = all_sleep(pid, &before);
        usleep(50000);
        if (!all_sleep(pid, &now) || !asleep) before = now + 1;
    }
    kill(pid, ready ? SIGABRT : SIGKILL);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    close(ends[0]);
    if (WIFSIGNALED(status) && WCOREDUMP(status)) keep_core(folder);
    snprintf(path, sizeof path, "/programs/%s/status", folder);
    FILE *file = fopen(path, "w");
    if (!file) fail("%s", path);
    fprintf(file, "%s %d\n", ready ? "ready" : "not ready", status);
    fclose(file);
    printf("%s: %s, status %d\n", folder, ready ? "ready" : "not ready", status);
}

static int has_command(const struct dirent *one) {
    char path[512];
    snprintf(path, sizeof path, "/programs/%.255s/command", one->d_name);
    return one->d_name[0] != '.' && !access(path, R_OK);
}

int main(void) {
    mounted("devtmpfs", "/dev", "devtmpfs", NULL);
    if (!freopen("/dev/console", "w", stdout)) return 1;
    setvbuf(stdout, NULL, _IOLBF, 0);
    mounted("proc", "/proc", "proc", NULL);
    load_modules();
    mounted("work", "/programs", "9p", "trans=virtio,version=9p2000.L,msize=262144,cache=none");
    mounted("root", "/root", "9p", "trans=virtio,version=9p2000.L,msize=262144,cache=loose");
    mounted("/programs", "/root/programs", NULL, NULL);
    mounted("proc", "/root/proc", "proc", NULL);
    mounted("devtmpfs", "/root/dev", "devtmpfs", NULL);
    mounted("tmpfs", "/root/tmp", "tmpfs", "size=90%");
    FILE *pattern = fopen("/proc/sys/kernel/core_pattern", "w");
    if (!pattern || fputs("/tmp/core", pattern) < 0 || fclose(pattern)) fail("core_pattern");
    struct dirent **programs;
    int count = scandir("/programs", &programs, has_command, alphasort);
    if (count <= 0) fail("no programs");
    for (int i = 0; i < count; i++) run(programs[i]->d_name);
    sync();
    reboot(RB_POWER_OFF);
    for (;;) pause();
}
