/* SPDX-License-Identifier: Apache-2.0 */
#include "radix/roots.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define HASH_NONFATAL_OOM 1
#define HASH_FUNCTION(key, length, hash) (hash) = (unsigned)XXH3_64bits((key), (length))
#define uthash_nonfatal_oom(element) ((void)(element))
#include <uthash.h>

/* The canonical bytes of a namespace: for each field its tag, its length and
 * its bytes. Two namespaces are the same exactly if these bytes are. */
struct root {
    UT_hash_handle hh;
    uint32_t number;
    uint32_t holds;
    int32_t first_child;
    uint32_t key_bytes;
    unsigned char key[];
};

struct weir_roots {
    struct root *by_key;     /* uthash */
    struct root **by_number; /* NULL where a number is free */
    uint32_t n_numbers;
    uint32_t capacity;
    size_t key_bytes;
};

int weir_roots_create(struct weir_roots **out)
{
    struct weir_roots *roots = calloc(1, sizeof *roots);
    if (!roots)
        return -ENOMEM;
    *out = roots;
    return 0;
}

void weir_roots_destroy(struct weir_roots **out)
{
    struct weir_roots *roots = *out;
    if (!roots)
        return;
    HASH_CLEAR(hh, roots->by_key);
    for (uint32_t i = 0; i < roots->n_numbers; i++)
        free(roots->by_number[i]);
    free(roots->by_number);
    free(roots);
    *out = NULL;
}

static int measure(const weir_field *fields, size_t n_fields, size_t *bytes)
{
    if (n_fields > WEIR_MAX_FIELDS || (n_fields && !fields))
        return -EINVAL;
    size_t total = 0;
    for (size_t i = 0; i < n_fields; i++) {
        if (fields[i].bytes > WEIR_MAX_FIELD_BYTES || (fields[i].bytes && !fields[i].data))
            return -EINVAL;
        total += 2 * sizeof(uint32_t) + fields[i].bytes;
    }
    *bytes = total;
    return 0;
}

static void write_key(unsigned char *key, const weir_field *fields, size_t n_fields)
{
    for (size_t i = 0; i < n_fields; i++) {
        memcpy(key, &fields[i].tag, sizeof(uint32_t));
        memcpy(key + sizeof(uint32_t), &fields[i].bytes, sizeof(uint32_t));
        key += 2 * sizeof(uint32_t);
        if (fields[i].bytes)
            memcpy(key, fields[i].data, fields[i].bytes);
        key += fields[i].bytes;
    }
}

/* A root that is not in the tables yet, with its key written. */
static int make_root(struct root **out, const weir_field *fields, size_t n_fields)
{
    size_t bytes;
    int rc = measure(fields, n_fields, &bytes);
    if (rc)
        return rc;
    struct root *root = calloc(1, sizeof *root + bytes);
    if (!root)
        return -ENOMEM;
    root->first_child = -1;
    root->key_bytes = (uint32_t)bytes;
    write_key(root->key, fields, n_fields);
    *out = root;
    return 0;
}

int weir_roots_find(const struct weir_roots *roots, const weir_field *fields, size_t n_fields,
                    int32_t *place)
{
    unsigned char key[WEIR_MAX_FIELDS * (2 * sizeof(uint32_t)) + 1024];
    size_t bytes;
    int rc = measure(fields, n_fields, &bytes);
    if (rc)
        return rc;
    /* Namespaces are short: the heap serves only those that are not. */
    unsigned char *buffer = bytes <= sizeof key ? key : malloc(bytes);
    if (!buffer)
        return -ENOMEM;
    write_key(buffer, fields, n_fields);
    struct root *root;
    HASH_FIND(hh, roots->by_key, buffer, (unsigned)bytes, root);
    if (buffer != key)
        free(buffer);
    if (!root)
        return -ENOENT;
    *place = -(int32_t)root->number - 2;
    return 0;
}

static int take_number(struct weir_roots *roots, uint32_t *number)
{
    for (uint32_t i = 0; i < roots->n_numbers; i++) {
        if (!roots->by_number[i]) {
            *number = i;
            return 0;
        }
    }
    if (roots->n_numbers == roots->capacity) {
        uint32_t capacity = roots->capacity ? roots->capacity * 2 : 16;
        struct root **grown = realloc(roots->by_number, capacity * sizeof(struct root *));
        if (!grown)
            return -ENOMEM;
        roots->by_number = grown;
        roots->capacity = capacity;
    }
    *number = roots->n_numbers;
    return 0;
}

int weir_roots_add(struct weir_roots *roots, const weir_field *fields, size_t n_fields,
                   int32_t *place)
{
    struct root *root;
    int rc = make_root(&root, fields, n_fields);
    if (rc)
        return rc;
    rc = take_number(roots, &root->number);
    if (rc) {
        free(root);
        return rc;
    }
    HASH_ADD(hh, roots->by_key, key, root->key_bytes, root);
    if (!root->hh.tbl) {
        free(root);
        return -ENOMEM;
    }
    if (root->number == roots->n_numbers)
        roots->n_numbers++;
    roots->by_number[root->number] = root;
    roots->key_bytes += sizeof *root + root->key_bytes;
    *place = -(int32_t)root->number - 2;
    return 0;
}

static struct root *root_at(const struct weir_roots *roots, int32_t place)
{
    if (place > -2)
        return NULL;
    uint32_t number = weir_root_number(place);
    return number < roots->n_numbers ? roots->by_number[number] : NULL;
}

bool weir_roots_has(const struct weir_roots *roots, int32_t place)
{
    return root_at(roots, place) != NULL;
}

int32_t *weir_roots_first_child(struct weir_roots *roots, int32_t place)
{
    return &root_at(roots, place)->first_child;
}

void weir_roots_hold(struct weir_roots *roots, int32_t place)
{
    root_at(roots, place)->holds++;
}

void weir_roots_free_if_unused(struct weir_roots *roots, int32_t place)
{
    struct root *root = root_at(roots, place);
    if (!root || root->holds || root->first_child >= 0)
        return;
    HASH_DEL(roots->by_key, root);
    roots->by_number[root->number] = NULL;
    roots->key_bytes -= sizeof *root + root->key_bytes;
    free(root);
}

void weir_roots_release(struct weir_roots *roots, int32_t place)
{
    struct root *root = root_at(roots, place);
    if (!root || root->holds == 0)
        return;
    root->holds--;
    weir_roots_free_if_unused(roots, place);
}

size_t weir_roots_bytes(const struct weir_roots *roots)
{
    return sizeof *roots + roots->capacity * sizeof *roots->by_number + roots->key_bytes;
}
