/* Runs work on several threads, which exist only until the call returns. */
#ifndef FINDLEAKS_THREADS_H
#define FINDLEAKS_THREADS_H

#include "native.h"

#define MOST_THREADS 64u

/* Call work(context, number) on this thread (number 0) and on up to `threads` - 1 others, and
 * wait for all. Some threads may fail to start, so each thread must take parts of the work until
 * none is left. The threads block all signals, which are meant for the debugger's own threads. */
void run_on_threads(unsigned threads, void (*work)(void *context, unsigned number), void *context);

/* Does the part [first, end) of the work on the thread with this number. */
typedef void part_work(void *context, unsigned thread, uint64_t first, uint64_t end);

/* Call work for the parts of [0, count), `size` each except perhaps the last, on this thread and
 * on up to `threads` - 1 others. Each takes the lowest part that is left. Few parts are done on
 * one thread. */
void run_in_parts(unsigned threads, uint64_t count, uint64_t size, part_work *work, void *context);

#endif
