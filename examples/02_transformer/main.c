/* SPDX-License-Identifier: Apache-2.0
 * A small transformer served with and without weir. Every mode must give the
 * same logits, to the last bit. */
#include "check.h"
#include "plain.h"
#include "scheduler.h"

#include <string.h>

#define HOST_PAGES 160

struct mode {
    const char *name;
    uint32_t n_ranks;
    bool processes;
    uint32_t device_pages; /* FEW: too small for the script, on purpose */
    uint32_t ahead;
};

#define FEW 26
#define PLENTY 150

static const struct mode modes[] = {
    { "plenty of device memory", 1, false, PLENTY, MAX_STEPS },
    { "little, step by step", 1, false, FEW, 1 },
    { "little, steps ahead", 1, false, FEW, MAX_STEPS },
    { "two ranks, threads", 2, false, FEW, MAX_STEPS },
    { "two ranks, processes", 2, true, FEW, MAX_STEPS },
};

/* Of a chat, or -1: the first token whose logits differ. */
static int first_difference(const struct outcome *a, const struct outcome *b)
{
    for (uint32_t i = 0; i < a->n || i < b->n; i++)
        if (i == a->n || i == b->n || a->digests[i] != b->digests[i] ||
            a->tokens[i] != b->tokens[i])
            return (int)i;
    return -1;
}

static uint32_t compare(const struct script *script, const struct outcome *right,
                        const struct outcome *outcomes)
{
    uint32_t n_different = 0;
    for (uint32_t i = 0; i < script->n_chats; i++) {
        int at = first_difference(&right[i], &outcomes[i]);
        if (at < 0)
            continue;
        printf("  chat '%s' differs from token %d of its answer on\n",
               script->chats[i].prompt->name, at);
        n_different++;
    }
    return n_different;
}

/* A mode must have gone through what the script is there for. */
static bool happened(const char *what, uint64_t n)
{
    if (n == 0)
        printf("  never happened: %s\n", what);
    return n > 0;
}

static bool went_through(const struct mode *mode, weir_device_kind device,
                         const struct summary *summary)
{
    bool all = happened("a device hit", summary->hit_device);
    all = happened("the same computed twice at once", summary->duplicates) && all;
    all = happened("a page copied for a sample", summary->copied) && all;
    all = happened("a draft accepted", summary->drafts_accepted) && all;
    all = happened("a draft refused", summary->drafts_refused) && all;
    if (mode->device_pages == PLENTY)
        return all;
    all = happened("a host hit", summary->hit_host) && all;
    all = happened("a load joined", summary->hit_loading) && all;
    all = happened("two loads abandoned", summary->aborted_in_load == 2) && all;
    all = happened("a preemption", summary->preempted) && all;
    if (device == WEIR_DEVICE_CPU)
        all = happened("a load failed", summary->recomputed) && all;
    return all;
}

static bool run_mode(const struct mode *mode, weir_device_kind device, const struct model *model,
                     const struct script *script, const struct outcome *right)
{
    static struct outcome outcomes[MAX_CHATS];
    struct summary summary;
    struct cluster cluster;
    struct cluster_params ranks = {
        .device = device,
        .n_ranks = mode->n_ranks,
        .processes = mode->processes,
        .device_pages = mode->device_pages,
        .host_pages = HOST_PAGES,
        .model = model,
    };
    struct scheduler_params params = {
        .script = script,
        .right = right,
        .cluster = &cluster,
        .device_pages = mode->device_pages,
        .host_pages = HOST_PAGES,
        .ahead = mode->ahead,
    };
    cluster_start(&cluster, &ranks);
    scheduler_run(&params, outcomes, &summary);
    cluster_stop(&cluster);
    uint32_t n_different = compare(script, right, outcomes);
    printf("%-24s %7llu %7llu %7llu %7llu %9llu %9llu  %s\n", mode->name,
           (unsigned long long)summary.rows, (unsigned long long)summary.steps,
           (unsigned long long)summary.hit_device,
           (unsigned long long)(summary.hit_host + summary.hit_loading),
           (unsigned long long)summary.preempted, (unsigned long long)summary.drafts_refused,
           n_different ? "DIFFERENT" : "equal");
    return went_through(mode, device, &summary) && n_different == 0;
}

static bool run_modes(weir_device_kind device, const struct model *model,
                      const struct script *script, const struct outcome *right)
{
    bool good = true;
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++)
        if (device == WEIR_DEVICE_CPU || modes[i].n_ranks == 1)
            good = run_mode(&modes[i], device, model, script, right) && good;
    return good;
}

static uint64_t run_plain(weir_device_kind device, const struct model *model,
                          const struct script *script, struct outcome *right)
{
#if TRANSFORMER_CUDA
    if (device == WEIR_DEVICE_CUDA)
        return plain_run_cuda(model, script, right);
#endif
    (void)device;
    return plain_run_cpu(model, script, right);
}

/* Whether there is a GPU and this program has kernels for it. */
static bool have_cuda(void)
{
    weir_device *device;
    weir_device_params params;
    weir_device_params_init(&params);
    params.kind = WEIR_DEVICE_CUDA;
    if (!TRANSFORMER_CUDA || weir_device_open(&device, &params))
        return false;
    CHECK(weir_device_close(&device));
    return true;
}

static bool parse(int argc, char **argv, weir_device_kind *device)
{
    bool named = argc == 3 && strcmp(argv[1], "--device") == 0;
    bool cuda = named && strcmp(argv[2], "cuda") == 0;
    *device = cuda ? WEIR_DEVICE_CUDA : WEIR_DEVICE_CPU;
    return argc == 1 || cuda || (named && strcmp(argv[2], "cpu") == 0);
}

int main(int argc, char **argv)
{
    static struct outcome right[MAX_CHATS];
    struct script script;
    weir_device_kind device;
    if (!parse(argc, argv, &device)) {
        fprintf(stderr, "usage: %s [--device cpu|cuda]\n", argv[0]);
        return 2;
    }
    if (device == WEIR_DEVICE_CUDA && !have_cuda()) {
        printf("skipped: no GPU, or built without kernels\n");
        return 77;
    }
    struct model *model = model_create(7);
    REQUIRE(model);
    script_write(&script);
    printf("%-24s %7s %7s %7s %7s %9s %9s  %s\n", "", "tokens", "steps", "hits", "host",
           "preempted", "refused", "logits");
    uint64_t n = run_plain(device, model, &script, right);
    printf("%-24s %7llu\n", "without weir", (unsigned long long)n);
    bool good = run_modes(device, model, &script, right);
    free(model);
    return good ? 0 : 1;
}
