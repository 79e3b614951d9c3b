/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cpu.h"
#include "base/log.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>

#define MAX_QUEUES 64u
#define MEMORY_ALIGN 256u
#define FIRST_COMPONENTS 8u
#define MAX_LATENCY_US 1e9

struct weir_cpu_device *weir_cpu_enter(weir_device *device)
{
    struct weir_cpu_device *cpu = weir_cpu_from(device);
    pthread_mutex_lock(&cpu->lock);
    return cpu;
}

void weir_cpu_leave(struct weir_cpu_device *device)
{
    struct weir_cpu_race *race = &device->race;
    while (race->n_logged < race->n_reports) {
        struct weir_cpu_race_report report = race->reports[race->n_logged++];
        pthread_mutex_unlock(&device->lock);
        weir_cpu_race_log(&report, &device->base.log);
        pthread_mutex_lock(&device->lock);
    }
    bool out_of_memory = race->out_of_memory;
    race->out_of_memory = false;
    pthread_mutex_unlock(&device->lock);
    if (out_of_memory)
        weir_log_line(&device->base.log, WEIR_LOG_WARN, "out of memory: the race check ends here");
}

/* ---- Memory -------------------------------------------------------------- */

static int count_call(weir_device *base, weir_cpu_call call)
{
    uint64_t stall_round;
    struct weir_cpu_device *device = weir_cpu_enter(base);
    int rc = weir_cpu_count(device, call, &stall_round);
    weir_cpu_leave(device);
    return rc;
}

static int memory_alloc(weir_device *base, uint64_t bytes, uint64_t *address)
{
    if (bytes == 0 || !address)
        return weir_invalid(&base->log, "memory alloc: %s",
                            address ? "bytes is 0, must be at least 1" : "address is NULL");
    int rc = count_call(base, WEIR_CPU_CALL_MEMORY_ALLOC);
    if (rc)
        return rc;
    if (bytes > SIZE_MAX - MEMORY_ALIGN)
        return -ENOMEM;
    void *memory =
        aligned_alloc(MEMORY_ALIGN, (bytes + MEMORY_ALIGN - 1) / MEMORY_ALIGN * MEMORY_ALIGN);
    if (!memory)
        return -ENOMEM;
    *address = (uintptr_t)memory;
    return 0;
}

static void memory_free(weir_device *base, uint64_t address)
{
    (void)base;
    free((void *)(uintptr_t)address);
}

static int host_register(weir_device *base, void *address, uint64_t bytes)
{
    int rc = weir_host_register_check(address, bytes, &base->log);
    if (rc)
        return rc;
    struct weir_cpu_device *device = weir_cpu_enter(base);
    uint64_t stall_round;
    rc = weir_cpu_count(device, WEIR_CPU_CALL_HOST_REGISTER, &stall_round);
    if (!rc)
        rc = weir_ranges_add(&device->registrations, address, bytes, NULL);
    weir_cpu_leave(device);
    if (rc == -EEXIST)
        return weir_invalid(&base->log, "host register: %p, %llu bytes, is registered in part",
                            address, (unsigned long long)bytes);
    return rc;
}

static void host_unregister(weir_device *base, void *address)
{
    struct weir_cpu_device *device = weir_cpu_enter(base);
    int rc = weir_ranges_remove(&device->registrations, address);
    weir_cpu_leave(device);
    if (rc)
        weir_log_line(&base->log, WEIR_LOG_ERROR, "host unregister: %p is not registered", address);
}

/* ---- Pools --------------------------------------------------------------- */

static int pool_register(weir_device *base, uint32_t n_pages, uint32_t n_tensors, uint32_t n_layers,
                         uint32_t *pool)
{
    if (!pool)
        return weir_invalid(&base->log, "pool register: pool is NULL");
    if (n_pages == 0 || n_pages > INT32_MAX || n_tensors == 0 || n_layers == 0)
        return weir_invalid(&base->log,
                            "pool register: %u pages, %u tensors, %u layers: each at least 1, "
                            "pages at most %d",
                            n_pages, n_tensors, n_layers, INT32_MAX);
    struct weir_cpu_device *device = weir_cpu_enter(base);
    int rc = -EIO;
    if (!atomic_load(&device->lost)) {
        rc = 0;
        if (device->check_races)
            rc = weir_cpu_race_add_pool(&device->race, n_pages, n_tensors, n_layers, pool);
        else
            *pool = 0;
    }
    weir_cpu_leave(device);
    return rc;
}

static void pool_unregister(weir_device *base, uint32_t pool)
{
    if (pool == 0)
        return;
    struct weir_cpu_device *device = weir_cpu_enter(base);
    int rc = weir_cpu_race_remove_pool(&device->race, pool);
    weir_cpu_leave(device);
    if (rc)
        weir_log_line(&base->log, WEIR_LOG_ERROR, "pool unregister: there is no pool %u", pool);
}

/* ---- Transfers ----------------------------------------------------------- */

static int transfer_prepare(weir_device *base, const struct weir_geometry *geometry,
                            uint32_t max_runs, void **state)
{
    (void)geometry;
    (void)max_runs;
    if (atomic_load(&weir_cpu_from(base)->lost))
        return -EIO;
    *state = NULL;
    return 0;
}

static void transfer_release(weir_device *base, void *state)
{
    (void)base;
    (void)state;
}

static uint64_t transfer_bytes(weir_device *base, const void *state)
{
    (void)base;
    (void)state;
    return 0;
}

static int transfer_tune(weir_device *base, const void *state, enum weir_direction direction,
                         const weir_transfer_tuning *tuning)
{
    (void)base;
    (void)state;
    (void)direction;
    (void)tuning;
    return 0;
}

/* ---- Opening and closing ------------------------------------------------- */

static int status(weir_device *base)
{
    return atomic_load(&weir_cpu_from(base)->lost) ? -EIO : 0;
}

/* What open has made, whole or in part: queues 0..n_queues-1 are ready. */
static void free_device(struct weir_cpu_device *device)
{
    for (uint32_t i = 0; i < device->n_queues; i++)
        pthread_cond_destroy(&device->queues[i].space);
    free(device->queues);
    weir_cpu_free_words(device);
    weir_cpu_point_unref(&device->points, device->host);
    weir_cpu_points_free(&device->points);
    weir_cpu_free_ops(device);
    weir_cpu_drop_faults(device);
    weir_cpu_race_free(&device->race);
    free(device->registrations.items);
    free(device->words.items);
    pthread_cond_destroy(&device->step_done);
    pthread_mutex_destroy(&device->lock);
    free(device);
}

static void close_device(weir_device *base)
{
    struct weir_cpu_device *device = weir_cpu_enter(base);
    device->stall_round++;
    for (struct weir_stream *stream = device->streams; stream; stream = stream->next)
        stream->parked = false;
    weir_cpu_kick(device);
    struct weir_stream *stream = device->streams;
    weir_cpu_leave(device);
    while (stream) {
        struct weir_stream *next = stream->next;
        weir_cpu_destroy_stream(base, stream);
        stream = next;
    }
    free_device(device);
}

const struct weir_device_ops weir_cpu_ops = {
    .name = "cpu",
    .close = close_device,
    .status = status,
    .memory_alloc = memory_alloc,
    .memory_free = memory_free,
    .host_register = host_register,
    .host_unregister = host_unregister,
    .words_alloc = weir_cpu_words_alloc,
    .words_free = weir_cpu_words_free,
    .word_load = weir_cpu_word_load,
    .word_store = weir_cpu_word_store,
    .stream_create = weir_cpu_new_stream,
    .stream_destroy = weir_cpu_destroy_stream,
    .stream_synchronize = weir_cpu_stream_synchronize,
    .stream_is_capturing = weir_cpu_stream_is_capturing,
    .event_create = weir_cpu_event_create,
    .event_destroy = weir_cpu_event_destroy,
    .event_record = weir_cpu_event_record,
    .stream_wait_event = weir_cpu_stream_wait_event,
    .stream_wait_event_external = weir_cpu_stream_wait_event_external,
    .stream_write_word = weir_cpu_stream_write_word,
    .stream_wait_word = weir_cpu_stream_wait_word,
    .transfer_prepare = transfer_prepare,
    .transfer_release = transfer_release,
    .transfer_bytes = transfer_bytes,
    .transfer_tune = transfer_tune,
    .copy = weir_cpu_copy,
    .copy_pages = weir_cpu_copy_pages,
    .gather_prepare = weir_cpu_gather_prepare,
    .gather_release = weir_cpu_gather_release,
    .gather_launch = weir_cpu_gather_launch,
    .expert_launch = weir_cpu_expert_launch,
    .pool_register = pool_register,
    .pool_unregister = pool_unregister,
};

void weir_cpu_device_params_init(weir_cpu_device_params *params)
{
    if (params)
        *params = (weir_cpu_device_params){
            .struct_size = sizeof *params, .n_queues = 8, .queue_depth = 1024, .check_races = true
        };
}

static bool is_rate(double gbps)
{
    return isfinite(gbps) && gbps >= 0;
}

static bool is_latency(double us)
{
    return us >= 0 && us <= MAX_LATENCY_US;
}

static int check_params(const weir_cpu_device_params *params)
{
    const weir_log *log = &params->log;
    if (params->n_queues < 1 || params->n_queues > MAX_QUEUES)
        return weir_invalid(log, "cpu device: n_queues is %u, must be 1..%u", params->n_queues,
                            MAX_QUEUES);
    if (params->queue_depth < 1)
        return weir_invalid(log, "cpu device: queue_depth is 0, must be at least 1");
    if (!is_rate(params->load_gbps) || !is_rate(params->write_back_gbps))
        return weir_invalid(log, "cpu device: rates are %g and %g, must be at least 0",
                            params->load_gbps, params->write_back_gbps);
    if (!is_latency(params->load_latency_us) || !is_latency(params->write_back_latency_us))
        return weir_invalid(log, "cpu device: latencies are %g and %g us, must be 0..%g",
                            params->load_latency_us, params->write_back_latency_us, MAX_LATENCY_US);
    return 0;
}

static struct weir_cpu_link link_of(double gbps, double latency_us)
{
    return (struct weir_cpu_link){ .ns_per_byte = gbps > 0 ? 1 / gbps : 0,
                                   .latency_ns = (uint64_t)(latency_us * 1000) };
}

static int make_queues(struct weir_cpu_device *device, uint32_t n)
{
    device->queues = calloc(n, sizeof *device->queues);
    if (!device->queues)
        return -ENOMEM;
    for (; device->n_queues < n; device->n_queues++) {
        int rc = weir_cpu_cond_init(&device->queues[device->n_queues].space);
        if (rc)
            return rc;
    }
    return 0;
}

static int make_device(struct weir_cpu_device **made, const weir_cpu_device_params *params)
{
    struct weir_cpu_device *device = calloc(1, sizeof *device);
    if (!device)
        return -ENOMEM;
    int rc = -pthread_mutex_init(&device->lock, NULL);
    if (rc) {
        free(device);
        return rc;
    }
    rc = weir_cpu_cond_init(&device->step_done);
    if (rc) {
        pthread_mutex_destroy(&device->lock);
        free(device);
        return rc;
    }
    device->points.size = params->check_races ? FIRST_COMPONENTS : 0;
    device->host = weir_cpu_point_new(&device->points);
    rc = device->host ? make_queues(device, params->n_queues) : -ENOMEM;
    if (rc) {
        free_device(device);
        return rc;
    }
    *made = device;
    return 0;
}

int weir_cpu_device_open(weir_device **device, const weir_cpu_device_params *params)
{
    weir_cpu_device_params defaults;
    weir_cpu_device_params_init(&defaults);
    if (!params)
        params = &defaults;
    /* Of a struct of another size not even the log can be trusted. */
    if (params->struct_size != sizeof *params)
        return -EINVAL;
    if (!device)
        return weir_invalid(&params->log, "cpu device: device is NULL");
    int rc = check_params(params);
    if (rc)
        return rc;
    struct weir_cpu_device *made = NULL;
    rc = make_device(&made, params);
    if (rc)
        return rc;
    made->base.ops = &weir_cpu_ops;
    made->base.log = params->log;
    made->base.numa_node = -1;
    made->seed = params->seed;
    made->random = params->seed;
    made->check_races = params->check_races;
    made->race.enabled = params->check_races;
    made->queue_depth = params->queue_depth;
    made->links[WEIR_LOAD] = link_of(params->load_gbps, params->load_latency_us);
    made->links[WEIR_WRITE_BACK] = link_of(params->write_back_gbps, params->write_back_latency_us);
    made->stall_round = 1;
    *device = &made->base;
    return 0;
}
