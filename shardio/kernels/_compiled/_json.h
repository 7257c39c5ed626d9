/* Tell whether a line is clearly one JSON document (RFC 8259) whose names differ in every object.
 *
 * "Clearly" keeps this short: a document in doubt (deep, with many or escaped names, with a large exponent) and one
 * that is wrong get the same answer, and Python's decoder decides.  The line is UTF-8, as the caller has found.
 * Functions return the place behind what they have read, or NULL.
 */
#ifndef SHARDIO_JSON_H
#define SHARDIO_JSON_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { SHARDIO_JSON_DEPTH = 32, SHARDIO_JSON_NAMES = 256, SHARDIO_JSON_DIGITS = 200 };

typedef const unsigned char *shardio_text;

static shardio_text shardio_json_space(shardio_text at, shardio_text end) {
    while (at < end && (*at == ' ' || *at == '\t' || *at == '\r' || *at == '\n')) at++;
    return at;
}

static int shardio_json_is_hex(unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static shardio_text shardio_json_escape(shardio_text at, shardio_text end) {
    if (at == end || *at == 0) return NULL;
    if (*at != 'u') return strchr("\"\\/bfnrt", *at) ? at + 1 : NULL;
    if (end - at < 5) return NULL;
    for (int i = 1; i < 5; i++)
        if (!shardio_json_is_hex(at[i])) return NULL;
    return at + 5;
}

/* `at` is behind the opening quote. */
static shardio_text shardio_json_string(shardio_text at, shardio_text end) {
    while (at && at < end) {
        unsigned char c = *at++;
        if (c == '"') return at;
        if (c < 0x20) return NULL;
        if (c == '\\') at = shardio_json_escape(at, end);
    }
    return NULL;
}

static shardio_text shardio_json_digits(shardio_text at, shardio_text end, ptrdiff_t most) {
    shardio_text first = at;
    while (at < end && *at >= '0' && *at <= '9') at++;
    return at > first && at - first <= most ? at : NULL;
}

/* Up to 200 digits and an exponent of two: within float64, which a larger number may not be. */
static shardio_text shardio_json_number(shardio_text at, shardio_text end) {
    if (at < end && *at == '-') at++;
    shardio_text first = at;
    at = shardio_json_digits(at, end, SHARDIO_JSON_DIGITS);
    if (!at || (*first == '0' && at - first > 1)) return NULL;
    if (at < end && *at == '.') at = shardio_json_digits(at + 1, end, PTRDIFF_MAX);
    if (at && at < end && (*at == 'e' || *at == 'E')) {
        at++;
        if (at < end && (*at == '+' || *at == '-')) at++;
        at = shardio_json_digits(at, end, 2);
    }
    return at;
}

static shardio_text shardio_json_word(shardio_text at, shardio_text end, const char *word) {
    size_t size = strlen(word);
    return (size_t)(end - at) >= size && !memcmp(at, word, size) ? at + size : NULL;
}

static shardio_text shardio_json_value(shardio_text at, shardio_text end, int depth);

static shardio_text shardio_json_array(shardio_text at, shardio_text end, int depth) {
    at = shardio_json_space(at, end);
    if (at < end && *at == ']') return at + 1;
    while ((at = shardio_json_value(at, end, depth))) {
        if (at == end) return NULL;
        if (*at == ']') return at + 1;
        if (*at++ != ',') return NULL;
    }
    return NULL;
}

static shardio_text shardio_json_object(shardio_text at, shardio_text end, int depth) {
    shardio_text names[SHARDIO_JSON_NAMES];
    ptrdiff_t sizes[SHARDIO_JSON_NAMES];
    at = shardio_json_space(at, end);
    if (at < end && *at == '}') return at + 1;
    for (int count = 0; count < SHARDIO_JSON_NAMES; count++) {
        at = shardio_json_space(at, end);
        if (at == end || *at != '"') return NULL;
        shardio_text name = at + 1;
        at = shardio_json_string(name, end);
        if (!at) return NULL;
        ptrdiff_t size = at - 1 - name;
        if (memchr(name, '\\', (size_t)size)) return NULL; /* another spelling of a name */
        for (int other = 0; other < count; other++)
            if (sizes[other] == size && !memcmp(names[other], name, (size_t)size)) return NULL;
        names[count] = name;
        sizes[count] = size;
        at = shardio_json_space(at, end);
        if (at == end || *at != ':') return NULL;
        at = shardio_json_value(at + 1, end, depth);
        if (!at || at == end) return NULL;
        if (*at == '}') return at + 1;
        if (*at++ != ',') return NULL;
    }
    return NULL;
}

/* A value with the whitespace around it. */
static shardio_text shardio_json_value(shardio_text at, shardio_text end, int depth) {
    at = shardio_json_space(at, end);
    if (at == end || depth == SHARDIO_JSON_DEPTH) return NULL;
    switch (*at) {
    case '{': at = shardio_json_object(at + 1, end, depth + 1); break;
    case '[': at = shardio_json_array(at + 1, end, depth + 1); break;
    case '"': at = shardio_json_string(at + 1, end); break;
    case 't': at = shardio_json_word(at, end, "true"); break;
    case 'f': at = shardio_json_word(at, end, "false"); break;
    case 'n': at = shardio_json_word(at, end, "null"); break;
    default: at = shardio_json_number(at, end);
    }
    return at ? shardio_json_space(at, end) : NULL;
}

static int shardio_is_json(shardio_text line, size_t size) {
    return shardio_json_value(line, line + size, 0) == line + size;
}

#endif
