/* Text hints: readable text at a block's start, quoted, cut, as JSON; same as
 * ../block_types/text.py.
 *
 * Non-ASCII characters need a table of Unicode. Without it, and for characters beyond it, -1
 * leaves the block to Python. Bytes that are not UTF-8, such as most pointers and numbers, are
 * rejected here. */
#include "rows.h"

#define COLUMNS 24u
#define LEAST 4u
#define MIN_OPEN 8u
#define MIN_SECOND 6u

enum { NO_TEXT = 0, TEXT = 1, UNKNOWN_TEXT = -1 };

static bool readable(uint8_t c) { return (c >= 0x20 && c < 0x7f) || c == '\n' || c == '\t' || c == '\r'; }

/* Return the length of a UTF-8 character in `count` bytes; 0: invalid; count + 1: cut off. RFC
 * 3629, 4. */
static uint32_t character(const uint8_t *data, uint32_t count) {
    uint8_t first = data[0], low = 0x80, high = 0xbf;
    uint32_t length = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
    if (first == 0xe0)
        low = 0xa0;
    else if (first == 0xed)
        high = 0x9f;
    else if (first == 0xf0)
        low = 0x90;
    else if (first == 0xf4)
        high = 0x8f;
    for (uint32_t at = 1; at < length; at++, low = 0x80, high = 0xbf) {
        if (at == count)
            return count + 1;
        if (data[at] < low || data[at] > high)
            return 0;
    }
    return length;
}

/* Return the code point of a complete character below CHARACTERS; CHARACTERS for any other. */
static uint32_t code_point(const uint8_t *data, uint32_t length) {
    if (length == 2)
        return (uint32_t)(data[0] & 0x1f) << 6 | (data[1] & 0x3f);
    return length == 3 ? (uint32_t)(data[0] & 0xf) << 12 | (uint32_t)(data[1] & 0x3f) << 6 | (data[2] & 0x3f) : CHARACTERS;
}

/* Return whether the data is text, up to its NUL or the end. *length: its bytes, if so. */
static int text_of(const uint8_t *data, uint32_t count, uint32_t least, const uint8_t *table, uint32_t *length) {
    const uint8_t *nul = memchr(data, 0, count);
    uint32_t end = nul ? (uint32_t)(nul - data) : count, at = 0, characters = 0, odd = 0;
    bool unknown = false, early = false; /* early: one of the first characters is not readable */
    while (at < end) {
        uint32_t step = character(data + at, end - at);
        if (!step || (step > end - at && nul))
            return NO_TEXT;
        if (step > end - at)
            break; /* the last character is cut off */
        uint32_t code = step > 1 ? code_point(data + at, step) : data[at];
        if (step > 1 && (!table || code == CHARACTERS))
            unknown = true;
        else if (step > 1 ? !table[code] : !readable(data[at])) {
            odd++;
            early = early || characters < least;
        }
        characters++;
        at += step;
    }
    if (characters < (nul ? least : MIN_OPEN) || early)
        return NO_TEXT;
    if (unknown)
        return UNKNOWN_TEXT;
    *length = at;
    return odd * 8 <= characters ? TEXT : NO_TEXT;
}

static uint8_t *put(uint8_t *out, const char *text, uint32_t count) {
    memcpy(out, text, count);
    return out + count;
}

/* Write one character as it is displayed, in *count columns. */
static void shown(uint8_t c, char *part, uint32_t *count) {
    static const char digits[] = "0123456789abcdef";
    static const char escaped[] = "\n\t\r\x1b\"\\", by[] = "ntre\"\\";
    const char *found = memchr(escaped, c, sizeof escaped - 1);
    if (found) {
        part[0] = '\\';
        part[1] = by[found - escaped];
        *count = 2;
    } else if (c >= 0x20 && c < 0x7f) {
        part[0] = (char)c;
        *count = 1;
    } else {
        part[0] = '\\';
        part[1] = 'x';
        part[2] = digits[c >> 4];
        part[3] = digits[c & 15];
        *count = 4;
    }
}

/* Write text, quoted and cut to COLUMNS, inside JSON: quotes and backslashes are escaped twice. */
static uint8_t *quoted(uint8_t *out, const uint8_t *text, uint32_t count, const uint8_t *table) {
    static const char digits[] = "0123456789abcdef";
    uint32_t columns = 0, step;
    out = put(out, "\\\"", 2);
    for (uint32_t at = 0; at < count; at += step) {
        char part[6];
        uint32_t wide, length;
        step = character(text + at, count - at);
        if (step == 1) {
            shown(text[at], part, &wide);
            length = wide;
        /* non-ASCII: unchanged, escaped for JSON, or escaped as unprintable and again for JSON */
        } else {
            uint32_t code = code_point(text + at, step);
            bool printable = table[code];
            length = !printable && code < 0x100 ? 4 : 6;
            wide = printable ? table[code] - 1u : length;
            part[0] = '\\';
            part[1] = length == 4 ? 'x' : 'u';
            for (uint32_t i = 2; i < length; i++)
                part[i] = digits[code >> 4 * (length - 1 - i) & 15];
            if (printable && columns + wide <= COLUMNS) {
                out = put(out, part, length);
                columns += wide;
                continue;
            }
        }
        if (columns + wide > COLUMNS) {
            out = put(out, "\\u2026", 6);
            break;
        }
        for (uint32_t i = 0; i < length; i++) {
            if (part[i] == '"' || part[i] == '\\')
                *out++ = '\\';
            *out++ = (uint8_t)part[i];
        }
        columns += wide;
    }
    return put(out, "\\\"", 2);
}

/* Return whether the first word is a mapped address. An address that has a NUL byte may look
 * like text: without ASLR a heap is at addresses like 0x555555564040, whose bytes are "@@VUUU". */
static bool is_pointer(const uint8_t *data, uint32_t count, const row_rules *r) {
    return count >= WORD && memchr(data, 0, WORD) && in_ranges(r->mapped, r->mapped_count, load(data));
}

int find_hint(const uint8_t *data, uint32_t count, const row_rules *r, uint32_t *from, uint32_t *length) {
    const uint8_t *characters = r->characters;
    uint8_t any = 0;
    *from = *length = 0;
    for (uint32_t at = 0; at < count; at++)
        any |= data[at];
    if (!any)
        return count >= WORD ? HINT_ZEROS : HINT_NONE;
    int found = text_of(data, count, LEAST, characters, length);
    if (found == TEXT && !is_pointer(data, count, r))
        return HINT_TEXT;
    if (found == UNKNOWN_TEXT)
        return HINT_UNKNOWN;
    if (count > 2 * WORD + 1) { /* a short std::string */
        uint64_t said = load(data + WORD);
        if (said >= LEAST && said <= 15 && count > 2 * WORD + said && !data[2 * WORD + said]) {
            found = text_of(data + 2 * WORD, (uint32_t)said + 1, LEAST, characters, length);
            if (found == UNKNOWN_TEXT)
                return HINT_UNKNOWN;
            if (found == TEXT && *length == said) {
                *from = 2 * WORD;
                return HINT_TEXT;
            }
        }
    }
    *from = WORD;
    found = count > WORD ? text_of(data + WORD, count - WORD, MIN_SECOND, characters, length) : NO_TEXT;
    return found == UNKNOWN_TEXT ? HINT_UNKNOWN : found == TEXT ? HINT_SECOND : HINT_NONE;
}

int hint_json(const uint8_t *data, uint32_t count, const row_rules *r, uint8_t *out) {
    uint32_t from, length;
    const uint8_t *start = out;
    int found = find_hint(data, count, r, &from, &length);
    if (found == HINT_UNKNOWN)
        return -1;
    if (found == HINT_NONE)
        return (int)(put(out, "null", 4) - start);
    if (found == HINT_ZEROS)
        return (int)(put(out, "\"zeros\"", 7) - start);
    *out++ = '"';
    if (found == HINT_SECOND)
        out = put(out, WORD == 8 ? "+8 " : "+4 ", 3);
    out = quoted(out, data + from, length, r->characters);
    *out++ = '"';
    return (int)(out - start);
}
