/* SPDX-License-Identifier: Apache-2.0 */

/* A share of ranks on two GPUs of the fake driver, which refuses to register
 * memory twice as a real one does. */

#include "cuda_rig.h"
#include "transfer/rank.h"

enum {
    RANKS = 2,
    PAGE_BYTES = 2048
};

static const weir_tensor tensors[] = {
    { .name = "k", .page_bytes = 1024, .row_bytes = 64 },
    { .name = "latent", .page_bytes = PAGE_BYTES, .row_bytes = 128, .replicated = true },
};
static const weir_shape shape = { 16, 3, 2, tensors };

struct pair {
    struct cuda_rig rigs[RANKS];
    weir_host_share *share;
    weir_rank *ranks[RANKS];
};

static int open_one(struct pair *pair, uint32_t i)
{
    weir_rank_params params;
    weir_rank_params_init(&params);
    params.shape = &shape;
    params.device_pages = RIG_PAGES;
    params.host_pages = RIG_PAGES;
    params.max_steps = 4;
    params.touch_threads = 1;
    params.share = pair->share;
    params.log = log_capture_log(&pair->rigs[i].capture);
    return weir_rank_open(&pair->ranks[i], pair->rigs[i].device, &params);
}

/* Host memory is seen at another address by these GPUs if `alias`. */
static void pair_open(struct pair *pair, bool alias)
{
    *pair = (struct pair){ 0 };
    struct fake_cuda *fake = fake_cuda_find();
    fake->n_devices = RANKS;
    fake->attributes[CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM] = !alias;
    for (uint32_t i = 0; i < RANKS; i++) {
        struct cuda_rig *rig = &pair->rigs[i];
        rig->fake = fake;
        weir_device_params params;
        weir_device_params_init(&params);
        params.kind = WEIR_DEVICE_CUDA;
        params.ordinal = i;
        params.log = log_capture_log(&rig->capture);
        cr_assert(zero(int, weir_device_open(&rig->device, &params)), "%s", rig->capture.last);
        rig->ops = rig->device->ops;
        cr_assert(zero(int, rig->ops->stream_create(rig->device, 0, &rig->stream)));
    }
    cr_assert(zero(int, weir_host_share_create(&pair->share, RANKS, NULL)));
}

/* What page, layer and place make of a byte; the same on all ranks if shared. */
static unsigned char byte_of(uint32_t rank, uint32_t tensor, uint32_t layer, int32_t page,
                             uint64_t at)
{
    uint32_t own = tensors[tensor].replicated ? 0 : 1 + rank;
    return (unsigned char)(31u * own + 7u * layer + 13u * (uint32_t)page + at + (at >> 8));
}

/* Fills the pages of a rank, or counts the bytes that are wrong. */
static uint64_t each_byte(const struct pair *pair, uint32_t rank, bool fill)
{
    uint64_t wrong = 0;
    for (uint32_t t = 0; t < 2; t++) {
        for (uint32_t layer = 0; layer < shape.n_layers; layer++) {
            for (int32_t page = 1; page <= 9; page++) {
                unsigned char *piece = (unsigned char *)(uintptr_t)weir_rank_device_address(
                    pair->ranks[rank], t, layer, (weir_device_page){ page });
                for (uint64_t at = 0; at < tensors[t].page_bytes; at++) {
                    if (fill)
                        piece[at] = byte_of(rank, t, layer, page, at);
                    wrong += piece[at] != byte_of(rank, t, layer, page, at);
                }
            }
        }
    }
    return wrong;
}

/* A step on each rank, which ends with all of it done. */
static void step(struct pair *pair, weir_order order)
{
    weir_move moves[9];
    for (int32_t i = 0; i < 9; i++)
        moves[i] = (weir_move){ { i + 1 }, { 18 - 2 * i } };
    order.loads = order.writes = moves;
    order.device_pages = order.host_pages = RIG_PAGES;
    uint64_t bytes[64], report[64];
    size_t n;
    cr_assert(zero(int, weir_order_encode(&order, bytes, sizeof bytes, &n, NULL)));
    for (uint32_t i = 0; i < RANKS; i++) {
        struct cuda_rig *rig = &pair->rigs[i];
        uint64_t begun;
        cr_assert(zero(int, weir_rank_begin(pair->ranks[i], bytes, n, 0, rig->stream, &begun)),
                  "%s", rig->capture.last);
        cr_assert(zero(int, weir_rank_end(pair->ranks[i], begun, rig->stream)));
        rig_run(rig);
        cr_assert(zero(int, weir_rank_synchronize(pair->ranks[i])));
        size_t reported;
        cr_assert(zero(int, weir_rank_report(pair->ranks[i], report, sizeof report, &reported)));
        const weir_report_item *items;
        size_t n_items;
        cr_assert(zero(int, weir_report_decode(&items, &n_items, report, reported, NULL)));
        cr_assert(eq(sz, n_items, 2));
        cr_assert(zero(int, items[0].rc | items[1].rc), "%s", rig->capture.last);
    }
}

Test(cuda_share, two_gpus_write_it_together_and_close_in_any_order)
{
    for (int which = 0; which < 4; which++) {
        struct pair pair;
        pair_open(&pair, which & 1);
        struct fake_cuda *fake = pair.rigs[0].fake;
        uint32_t registered = fake->counts[FAKE_cuMemHostRegister];
        uint32_t unregistered = fake->counts[FAKE_cuMemHostUnregister];
        for (uint32_t i = 0; i < RANKS; i++)
            cr_assert(zero(int, open_one(&pair, i)), "%s", pair.rigs[i].capture.last);
        /* Each its own pool, and both the share's, of which one is refused. */
        cr_assert(eq(u32, fake->counts[FAKE_cuMemHostRegister] - registered, 4));
        for (uint32_t i = 0; i < RANKS; i++)
            each_byte(&pair, i, true);
        step(&pair, (weir_order){ .step = 1, .n_writes = 9, .write_ticket = 1 });
        for (uint32_t i = 0; i < RANKS; i++)
            for (int32_t page = 1; page <= 9; page++)
                memset((void *)(uintptr_t)weir_rank_device_address(pair.ranks[i], 1, 1,
                                                                   (weir_device_page){ page }),
                       0, PAGE_BYTES);
        step(&pair, (weir_order){ .step = 2, .n_loads = 9 });
        for (uint32_t i = 0; i < RANKS; i++)
            cr_assert(zero(u64, each_byte(&pair, i, false)), "rank %u", i);

        bool first = which & 2;
        weir_rank_close(&pair.ranks[!first]);
        cr_assert(eq(int, weir_device_close(&pair.rigs[!first].device), -EBUSY));
        weir_rank_close(&pair.ranks[first]);
        weir_host_share_close(&pair.share);
        cr_assert(eq(u32, fake->counts[FAKE_cuMemHostUnregister] - unregistered, 3));
        for (uint32_t i = 0; i < RANKS; i++) {
            pair.rigs[i].ops->stream_destroy(pair.rigs[i].device, pair.rigs[i].stream);
            cr_assert(zero(int, weir_device_close(&pair.rigs[i].device)));
        }
        rig_check_clean(fake);
    }
}

/* The second GPU cannot see the memory, or has no memory to remember it. */
Test(cuda_share, a_gpu_that_cannot_have_it_leaves_the_first_alone)
{
    struct pair pair;
    pair_open(&pair, false);
    struct fake_cuda *fake = pair.rigs[0].fake;
    cr_assert(zero(int, open_one(&pair, 0)));
    uint32_t allocations = fake->n_allocations;
    fake_cuda_fail(fake, FAKE_cuMemHostGetDevicePointer, 1, CUDA_ERROR_NOT_PERMITTED);
    cr_assert(eq(int, open_one(&pair, 1), -EIO));
    cr_assert(eq(u32, fake->n_allocations, allocations));
    cr_assert(zero(int, open_one(&pair, 1)), "%s", pair.rigs[1].capture.last);
    for (uint32_t i = 0; i < RANKS; i++)
        weir_rank_close(&pair.ranks[i]);
    weir_host_share_close(&pair.share);
    for (uint32_t i = 0; i < RANKS; i++) {
        pair.rigs[i].ops->stream_destroy(pair.rigs[i].device, pair.rigs[i].stream);
        cr_assert(zero(int, weir_device_close(&pair.rigs[i].device)));
    }
    rig_check_clean(fake);
}
