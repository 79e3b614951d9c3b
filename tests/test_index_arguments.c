/* SPDX-License-Identifier: Apache-2.0 */
#include <weir/page_pool.h>
#include <weir/policy.h>
#include <weir/radix.h>

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>

/* Bad input to the layers below the cache, beside what their own tests try. */

Test(index_arguments, a_radix_that_is_not_there)
{
    weir_field field = { 1, 1, "a" };
    int32_t tokens[4] = { 1, 2, 3, 4 }, refs[4] = { 77 }, root = 77;
    uint32_t n_there = 77;
    weir_radix *radix = NULL;
    cr_expect(eq(int, weir_radix_find_root(NULL, &field, 1, &root), -EINVAL));
    cr_expect(eq(int, weir_radix_hold_root(NULL, &field, 1, &root), -EINVAL));
    weir_radix_release_root(NULL, -2);
    weir_radix_touch(NULL, refs, 1);
    weir_part part = { .tokens = tokens, .n_tokens = 4 };
    cr_expect(zero(u32, weir_radix_peek(NULL, -2, &part, refs, 4)));
    cr_expect(zero(u32, weir_radix_match(NULL, -2, &part, refs, 4)));
    cr_expect(eq(int, weir_radix_insert(NULL, -2, &part, refs, &n_there), -EINVAL));
    cr_expect(zero(sz, weir_radix_count_spans(NULL, &part) + weir_radix_spans_held(NULL)));
    cr_expect(eq(int, weir_radix_hold_spans(NULL, 1), -EINVAL));
    weir_radix_release_spans(NULL, 1);
    cr_expect(zero(u64, weir_radix_hash(NULL, 0)));
    cr_expect(eq(int, weir_radix_remove(NULL, 0), -EINVAL));
    cr_expect(eq(i32, weir_radix_parent(NULL, 0), WEIR_RADIX_NONE));
    cr_expect(eq(i32, weir_radix_first_child(NULL, -2), WEIR_RADIX_NONE));
    cr_expect(eq(i32, weir_radix_next_sibling(NULL, 0), WEIR_RADIX_NONE));
    cr_expect(zero(ptr, (void *)weir_radix_tokens(NULL, 0)));
    cr_expect(zero(u64, weir_radix_last_use(NULL, 0) + weir_radix_clock(NULL)));
    cr_expect(zero(sz, weir_radix_pages(NULL) + weir_radix_bytes(NULL)));
    cr_expect(eq(int, weir_radix_check(NULL, NULL), -EINVAL));
    cr_expect(root == 77 && n_there == 77 && refs[0] == 77 && radix == NULL);
}

Test(index_arguments, places_that_are_not_in_a_radix)
{
    weir_radix *radix;
    int32_t tokens[8] = { 0 }, refs[4] = { 77 }, root = 0;
    uint32_t n_there = 77;
    cr_assert(zero(int, weir_radix_create(&radix, 2, 4, NULL)));
    cr_expect(eq(int, weir_radix_find_root(radix, NULL, 0, &root), -ENOENT));
    cr_expect(eq(int, weir_radix_find_root(radix, NULL, 0, NULL), -EINVAL));
    cr_assert(zero(int, weir_radix_hold_root(radix, NULL, 0, &root)));
    cr_expect(eq(int, weir_radix_hold_root(radix, NULL, 0, NULL), -EINVAL));
    weir_part part = { .tokens = tokens, .n_tokens = 8 }, no_tokens = { .n_tokens = 8 };
    static const int32_t nowhere[] = { -1, -3, 0, 3, 4, INT32_MAX, INT32_MIN };
    for (size_t i = 0; i < sizeof nowhere / sizeof *nowhere; i++) {
        int32_t at = nowhere[i];
        cr_expect(eq(int, weir_radix_insert(radix, at, &part, refs, &n_there), -EINVAL));
        cr_expect(zero(u32, weir_radix_peek(radix, at, &part, refs, 4)));
        cr_expect(zero(u64, weir_radix_hash(radix, at)));
        cr_expect(eq(int, weir_radix_remove(radix, at), -EINVAL));
        cr_expect(eq(i32, weir_radix_parent(radix, at), WEIR_RADIX_NONE));
        cr_expect(eq(i32, weir_radix_first_child(radix, at), WEIR_RADIX_NONE));
        cr_expect(eq(i32, weir_radix_next_sibling(radix, at), WEIR_RADIX_NONE));
        cr_expect(zero(ptr, (void *)weir_radix_tokens(radix, at)));
        cr_expect(zero(u64, weir_radix_last_use(radix, at)));
        weir_radix_release_root(radix, at);
    }
    cr_expect(eq(int, weir_radix_insert(radix, root, NULL, refs, &n_there), -EINVAL));
    cr_expect(eq(int, weir_radix_insert(radix, root, &no_tokens, refs, &n_there), -EINVAL));
    cr_expect(eq(int, weir_radix_insert(radix, root, &part, NULL, &n_there), -EINVAL));
    cr_expect(eq(int, weir_radix_insert(radix, root, &part, refs, NULL), -EINVAL));
    cr_expect(zero(u32, weir_radix_peek(radix, root, NULL, refs, 4)));
    cr_expect(zero(u32, weir_radix_peek(radix, root, &no_tokens, refs, 4)));
    cr_expect(n_there == 77 && refs[0] == 77 && weir_radix_pages(radix) == 0);
    cr_expect(zero(int, weir_radix_check(radix, NULL)));
    weir_radix_destroy(&radix);
}

Test(index_arguments, a_page_pool_that_is_not_there)
{
    int32_t page = 77, owner = 77;
    weir_step_set steps = { 1, 0 };
    cr_expect(eq(int, weir_page_pool_alloc(NULL, 1, 0, 0, &page, &owner), -EINVAL));
    cr_expect(eq(int, weir_page_pool_free(NULL, 1), -EINVAL));
    cr_expect(eq(int, weir_page_pool_offer(NULL, 1), -EINVAL));
    cr_expect(eq(int, weir_page_pool_take_back(NULL, 1), -EINVAL));
    cr_expect(eq(int, weir_page_pool_set_owner(NULL, 1, 0), -EINVAL));
    cr_expect(eq(int, weir_page_pool_pin(NULL, 1), -EINVAL));
    cr_expect(eq(int, weir_page_pool_unpin(NULL, 1), -EINVAL));
    cr_expect(eq(int, weir_page_pool_add_steps(NULL, 1, &steps), -EINVAL));
    cr_expect(eq(int, weir_page_pool_check(NULL, NULL), -EINVAL));
    cr_expect(eq(i32, weir_page_pool_owner(NULL, 1), WEIR_NO_OWNER));
    cr_expect(zero(u32, weir_page_pool_pins(NULL, 1) + weir_page_pool_generation(NULL, 1)));
    cr_expect(zero(u32, weir_page_pool_size(NULL) + weir_page_pool_n_free(NULL)));
    cr_expect(zero(u32, weir_page_pool_n_offered(NULL)));
    cr_expect(zero(sz, weir_page_pool_bytes(NULL)));
    cr_expect(zero(u64, weir_page_pool_steps(NULL, 1).newest));
    cr_expect(eq(int, weir_page_pool_state(NULL, 1), WEIR_PAGE_FREE));

    weir_page_pool *pool;
    cr_assert(zero(int, weir_page_pool_create(&pool, 4, true, NULL)));
    cr_expect(eq(int, weir_page_pool_alloc(pool, 1, 0, 0, NULL, &owner), -EINVAL));
    cr_expect(eq(int, weir_page_pool_alloc(pool, 1, 0, 0, &page, NULL), -EINVAL));
    cr_expect(eq(int, weir_page_pool_alloc(pool, 1, -1, 0, &page, &owner), -EINVAL));
    cr_expect(eq(int, weir_page_pool_alloc(pool, 5, 0, 0, &page, &owner), -ENOSPC));
    cr_expect(eq(int, weir_page_pool_alloc(pool, UINT32_MAX, 0, 0, &page, &owner), -ENOSPC));
    cr_expect(eq(int, weir_page_pool_add_steps(pool, 1, NULL), -EINVAL));
    cr_expect(eq(int, weir_page_pool_set_owner(pool, 1, 0), -EINVAL));
    cr_expect(page == 77 && owner == 77 && weir_page_pool_n_free(pool) == 4);
    /* Wishes that cannot be met are no errors. */
    cr_expect(eq(int, weir_page_pool_alloc(pool, 1, INT32_MAX, UINT32_MAX, &page, &owner), 0));
    cr_expect(eq(int, weir_page_pool_set_owner(pool, page, -2), -EINVAL));
    cr_expect(eq(int, weir_page_pool_free(pool, page), 0));
    cr_expect(eq(int, weir_page_pool_free(pool, page), -EINVAL));
    weir_page_pool_destroy(&pool);
}

Test(index_arguments, policies_that_are_not_there)
{
    weir_write_policy policy = { .parameter = 77 };
    cr_expect(zero(ptr, (void *)weir_evict_policy_find(NULL)));
    cr_expect(zero(ptr, (void *)weir_evict_policy_find("none")));
    cr_expect(zero(ptr, (void *)weir_evict_policy_at(8)));
    cr_expect(eq(int, weir_write_policy_parse(NULL, &policy), -EINVAL));
    cr_expect(eq(int, weir_write_policy_parse("never", NULL), -EINVAL));
    cr_expect(eq(int, weir_write_policy_parse("nev", &policy), -EINVAL));
    cr_expect(zero(ptr, (void *)weir_write_policy_name_at(5)));
    cr_expect(policy.parameter == 77 && policy.name == NULL);
}
