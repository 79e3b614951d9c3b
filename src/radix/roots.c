/* SPDX-License-Identifier: Apache-2.0 */
#include "radix/roots.h"

#include <errno.h>
#include <string.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

#define FIRST_CAPACITY 16u
#define NO_NUMBER UINT32_MAX

/* The canonical bytes of a namespace: for each field its tag, its length and
 * its bytes. Two namespaces are the same exactly if these bytes are. */
struct root {
    struct root *next; /* in its bucket */
    uint64_t hash;
    uint32_t number;
    uint32_t holds;
    int32_t first_child;
    uint32_t key_bytes;
    unsigned char key[];
};

/* A number is a root's, or in the list of free ones. */
struct numbered {
    struct root *root;
    uint32_t next_free;
};

struct weir_roots {
    struct weir_memory *memory;
    struct root **buckets;     /* [capacity], a power of two; by hash */
    struct numbered *numbered; /* [capacity] */
    uint32_t capacity;
    uint32_t n_numbers; /* that were ever used */
    uint32_t first_free;
};

int weir_roots_create(struct weir_roots **out, struct weir_memory *memory)
{
    struct weir_roots *roots = weir_memory_take(memory, 1, sizeof *roots);
    if (!roots)
        return -ENOMEM;
    roots->memory = memory;
    roots->first_free = NO_NUMBER;
    *out = roots;
    return 0;
}

static void free_root(struct weir_roots *roots, struct root *root)
{
    if (root)
        weir_memory_give(roots->memory, root, 1, sizeof *root + root->key_bytes);
}

void weir_roots_destroy(struct weir_roots **out)
{
    struct weir_roots *roots = *out;
    if (!roots)
        return;
    for (uint32_t i = 0; i < roots->n_numbers; i++)
        free_root(roots, roots->numbered[i].root);
    weir_memory_give(roots->memory, roots->buckets, roots->capacity, sizeof(struct root *));
    weir_memory_give(roots->memory, roots->numbered, roots->capacity, sizeof *roots->numbered);
    weir_memory_give(roots->memory, roots, 1, sizeof *roots);
    *out = NULL;
}

/* ---- Keys ---------------------------------------------------------------- */

static int measure(const weir_field *fields, size_t n_fields, size_t *bytes, uint64_t *hash)
{
    if (n_fields > WEIR_MAX_FIELDS || (n_fields && !fields))
        return -EINVAL;
    size_t total = 0;
    uint64_t sum = n_fields;
    for (size_t i = 0; i < n_fields; i++) {
        if (fields[i].bytes > WEIR_MAX_FIELD_BYTES || (fields[i].bytes && !fields[i].data))
            return -EINVAL;
        uint32_t frame[] = { fields[i].tag, fields[i].bytes };
        sum = XXH3_64bits_withSeed(frame, sizeof frame, sum);
        if (fields[i].bytes)
            sum = XXH3_64bits_withSeed(fields[i].data, fields[i].bytes, sum);
        total += sizeof frame + fields[i].bytes;
    }
    *bytes = total;
    *hash = sum;
    return 0;
}

static void write_key(unsigned char *key, const weir_field *fields, size_t n_fields)
{
    for (size_t i = 0; i < n_fields; i++) {
        uint32_t frame[] = { fields[i].tag, fields[i].bytes };
        memcpy(key, frame, sizeof frame);
        key += sizeof frame;
        if (fields[i].bytes)
            memcpy(key, fields[i].data, fields[i].bytes);
        key += fields[i].bytes;
    }
}

/* Whether the canonical bytes of the fields, whose number is right, are these. */
static bool key_is(const unsigned char *key, const weir_field *fields, size_t n_fields)
{
    for (size_t i = 0; i < n_fields; i++) {
        uint32_t frame[] = { fields[i].tag, fields[i].bytes };
        if (memcmp(key, frame, sizeof frame) != 0)
            return false;
        key += sizeof frame;
        if (fields[i].bytes && memcmp(key, fields[i].data, fields[i].bytes) != 0)
            return false;
        key += fields[i].bytes;
    }
    return true;
}

int weir_roots_find(const struct weir_roots *roots, const weir_field *fields, size_t n_fields,
                    int32_t *place)
{
    size_t bytes;
    uint64_t hash;
    int rc = measure(fields, n_fields, &bytes, &hash);
    if (rc)
        return rc;
    const struct root *root = roots->capacity ? roots->buckets[hash & (roots->capacity - 1)] : NULL;
    for (; root; root = root->next) {
        if (root->hash != hash || root->key_bytes != bytes || !key_is(root->key, fields, n_fields))
            continue;
        *place = -(int32_t)root->number - 2;
        return 0;
    }
    return -ENOENT;
}

/* ---- Adding -------------------------------------------------------------- */

static int grow(struct weir_roots *roots)
{
    uint32_t n = roots->capacity, capacity = n ? n * 2 : FIRST_CAPACITY;
    struct root **buckets = weir_memory_take(roots->memory, capacity, sizeof(struct root *));
    struct numbered *numbered = NULL;
    if (buckets)
        numbered = weir_memory_grow(roots->memory, roots->numbered, n, capacity, sizeof *numbered);
    if (!numbered) {
        weir_memory_give(roots->memory, buckets, capacity, sizeof(struct root *));
        return -ENOMEM;
    }
    weir_memory_give(roots->memory, roots->buckets, n, sizeof(struct root *));
    roots->buckets = buckets;
    roots->numbered = numbered;
    roots->capacity = capacity;
    for (uint32_t i = 0; i < roots->n_numbers; i++) {
        struct root *root = numbered[i].root;
        struct root **bucket = &buckets[root->hash & (capacity - 1)];
        root->next = *bucket;
        *bucket = root;
    }
    return 0;
}

int weir_roots_add(struct weir_roots *roots, const weir_field *fields, size_t n_fields,
                   int32_t *place)
{
    size_t bytes;
    uint64_t hash;
    int rc = measure(fields, n_fields, &bytes, &hash);
    if (rc)
        return rc;
    struct root *root = weir_memory_take(roots->memory, 1, sizeof *root + bytes);
    if (!root)
        return -ENOMEM;
    root->hash = hash;
    root->first_child = -1;
    root->key_bytes = (uint32_t)bytes;
    write_key(root->key, fields, n_fields);
    /* All numbers are in use, or one is free: so a growing table has no gaps. */
    if (roots->first_free == NO_NUMBER && roots->n_numbers == roots->capacity && grow(roots)) {
        free_root(roots, root);
        return -ENOMEM;
    }
    if (roots->first_free == NO_NUMBER) {
        root->number = roots->n_numbers++;
    } else {
        root->number = roots->first_free;
        roots->first_free = roots->numbered[root->number].next_free;
    }
    roots->numbered[root->number].root = root;
    struct root **bucket = &roots->buckets[hash & (roots->capacity - 1)];
    root->next = *bucket;
    *bucket = root;
    *place = -(int32_t)root->number - 2;
    return 0;
}

/* ---- Roots by place ------------------------------------------------------ */

static struct root *root_at(const struct weir_roots *roots, int32_t place)
{
    if (place > -2)
        return NULL;
    uint32_t number = weir_root_number(place);
    return number < roots->n_numbers ? roots->numbered[number].root : NULL;
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
    struct root **link = &roots->buckets[root->hash & (roots->capacity - 1)];
    while (*link != root)
        link = &(*link)->next;
    *link = root->next;
    roots->numbered[root->number] = (struct numbered){ NULL, roots->first_free };
    roots->first_free = root->number;
    free_root(roots, root);
}

void weir_roots_release(struct weir_roots *roots, int32_t place)
{
    struct root *root = root_at(roots, place);
    if (!root || root->holds == 0)
        return;
    root->holds--;
    weir_roots_free_if_unused(roots, place);
}
