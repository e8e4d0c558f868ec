/* Scans memory for references on several threads, and records these in the order of the words. */
#ifndef FINDLEAKS_SCAN_H
#define FINDLEAKS_SCAN_H

#include "references.h"

void scan_free(struct scan *memory);

#endif
