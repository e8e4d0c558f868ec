/* Scans memory for references on several threads, and records these in the order of the words. */
#ifndef FINDLEAKS_SCAN_H
#define FINDLEAKS_SCAN_H

#include "references.h"

void scan_free(struct scan *memory);
/* Add the references of a stretch, all from blocks; their sources ascend from call to call. */
int record_edges(graph *g, const stretch *s);

#endif
