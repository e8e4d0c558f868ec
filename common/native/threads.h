/* Runs work on several threads, which exist only until the call returns. */
#ifndef FINDLEAKS_THREADS_H
#define FINDLEAKS_THREADS_H

#include "native.h"

#define MOST_THREADS 64u

/* Call work(context, number) on this thread (number 0) and on up to `threads` - 1 others, and wait
 * for all. Threads that cannot be started are done without, so the work must be taken in parts by
 * whichever thread is free. They block all signals: a debugger's are for its own threads. */
void run_on_threads(unsigned threads, void (*work)(void *context, unsigned number), void *context);

/* A call for [first, end), on the thread of this number. */
typedef void part_work(void *context, unsigned thread, uint64_t first, uint64_t end);

/* Call work for the parts of [0, count), `size` each but perhaps the last, on this thread and on up
 * to `threads` - 1 others: each takes the lowest that is left. Few parts are not worth threads. */
void run_in_parts(unsigned threads, uint64_t count, uint64_t size, part_work *work, void *context);

#endif
