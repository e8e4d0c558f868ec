/* A program whose threads wait for mutexes, in the way that its argument selects, until it is killed. */
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t accounts = PTHREAD_MUTEX_INITIALIZER, journal = PTHREAD_MUTEX_INITIALIZER;
static pthread_rwlock_t table = PTHREAD_RWLOCK_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t both;
static sem_t never;

static void *lock_both(void *one) {
    pthread_mutex_t *first = one ? &accounts : &journal, *second = one ? &journal : &accounts;
    pthread_mutex_lock(first);
    pthread_barrier_wait(&both);
    pthread_mutex_lock(second);
    return 0;
}
static void *lock_one(void *one) { pthread_mutex_lock(one); return 0; }
static void *hold(void *one) {
    pthread_mutex_lock(one);
    pthread_barrier_wait(&both);
    sem_wait(&never);
    return 0;
}
static void *write_table(void *one) { (void)one; pthread_rwlock_wrlock(&table); return 0; }
static void *hold_table(void *one) {
    write_table(one);
    pthread_barrier_wait(&both);
    sem_wait(&never);
    return 0;
}
static void *start(void *(*function)(void *), void *one) {
    pthread_t thread;
    pthread_create(&thread, 0, function, one);
    return (void *)thread;
}

int main(int count, char **words) {
    const char *word = count > 1 ? words[1] : "";
    pthread_mutex_t *allocated = malloc(sizeof *allocated), inheriting;
    pthread_mutexattr_t attributes;
    pthread_mutex_init(allocated, 0);
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setprotocol(&attributes, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(&inheriting, &attributes);
    pthread_barrier_init(&both, 0, 2);
    sem_init(&never, 0, 0);
    fprintf(stderr, "accounts=%p journal=%p table=%p allocated=%p inheriting=%p changed=%p never=%p pid=%d\n", (void *)&accounts,
            (void *)&journal, (void *)&table, (void *)allocated, (void *)&inheriting, (void *)&changed, (void *)&never, getpid());
    if (!strcmp(word, "cycle")) start(lock_both, 0), lock_both(word[0] ? &both : 0);
    if (!strcmp(word, "twice")) lock_one(&accounts), start(lock_one, &accounts), lock_one(&accounts);
    if (!strcmp(word, "ended")) pthread_join((pthread_t)start(lock_one, &journal), 0), lock_one(&journal);
    if (!strcmp(word, "forked")) {
        start(hold, allocated);
        pthread_barrier_wait(&both);
        if (fork()) sem_wait(&never);
        fprintf(stderr, "child=%d\n", getpid());
        lock_one(allocated);
    }
    if (!strcmp(word, "held")) {
        start(hold, allocated);
        pthread_barrier_wait(&both);
        start(lock_one, allocated);
        lock_one(allocated);
    }
    if (!strcmp(word, "inherited")) {
        start(hold, &inheriting);
        pthread_barrier_wait(&both);
        lock_one(&inheriting);
    }
    if (!strcmp(word, "table")) {
        start(hold_table, 0);
        pthread_barrier_wait(&both);
        start(write_table, 0);
        pthread_rwlock_rdlock(&table);
    }
    if (!strcmp(word, "timed")) {
        struct timespec until = {time(0) + 600, 0};
        lock_one(&accounts);
        pthread_mutex_timedlock(&accounts, &until);
    }
    /* Locks of other libraries that look like a mutex or a read-write lock, with the ID of a thread that does not exist. */
    if (!strcmp(word, "own-lock") || !strcmp(word, "own-table")) {
        static const int lock[5] = {2, 0, 4999, 1, 0}, locked_table[8] = {2, 0, 7, 2, 0, 0, 4999, 0};
        int *other = word[4] == 'l' ? memcpy(allocated, lock, sizeof lock) : memcpy(&table, locked_table, sizeof locked_table);
        syscall(SYS_futex, word[4] == 'l' ? other : other + 2, 128, word[4] == 'l' ? 2 : 7, 0);
    }
    if (!strcmp(word, "changed")) {
        lock_one(&accounts);
        pthread_cond_wait(&changed, &accounts);
    }
    if (!strcmp(word, "crowd")) {
        start(hold, &accounts);
        pthread_barrier_wait(&both);
        for (int i = 0; i < 8; i++) start(lock_one, &accounts);
        lock_one(&accounts);
    }
    return 0;
}
