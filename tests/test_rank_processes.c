/* SPDX-License-Identifier: Apache-2.0 */

/* Ranks in processes of their own, each with its layers and sizes: orders go to
 * them and reports come back over channels in shared memory, or over pipes. The
 * scheduler tells each rank how far its device runs, so that every run of a test is
 * the same, and brings the reports to two caches in an order that mixes the
 * ranks. */

#include "brain_rig.h"

#include <weir/channel.h>

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    RANKS = 2,
    DEVICE_PAGES = 14,
    HOST_PAGES = 24,
    MESSAGE_BYTES = 4096,
    INBOX = 256
};

/* Rank 0 has the first layers, rank 1 one more than it and scales, too. */
static const weir_tensor first_tensors[] = { { .name = "k", .row_bytes = 16, .page_bytes = 64 },
                                             { .name = "v", .row_bytes = 24, .page_bytes = 96 } };
static const weir_tensor second_tensors[] = { { .name = "k", .row_bytes = 40, .page_bytes = 160 },
                                              { .name = "v", .row_bytes = 12, .page_bytes = 48 },
                                              { .name = "scales", .page_bytes = 7 } };
static const weir_shape shapes[RANKS] = { { BRAIN_TOKENS, 2, 2, first_tensors },
                                          { BRAIN_TOKENS, 3, 3, second_tensors } };

/* ---- Messages ------------------------------------------------------------- */

struct link {
    bool pipes;
    void *memory[2]; /* to the rank, from the rank */
    size_t bytes;
    int fds[2][2];
    weir_channel ends[2]; /* to send, to receive */
    int from_fd, to_fd;
};

static size_t link_bytes(void)
{
    return weir_channel_bytes(MESSAGE_BYTES, 2);
}

static void link_create(struct link *link, bool pipes)
{
    *link = (struct link){ .pipes = pipes, .bytes = link_bytes() };
    for (int i = 0; i < 2; i++) {
        if (pipes) {
            cr_assert(zero(int, pipe(link->fds[i])));
            continue;
        }
        link->memory[i] =
            mmap(NULL, link->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        cr_assert(link->memory[i] != MAP_FAILED);
        cr_assert(zero(int, weir_channel_format(link->memory[i], link->bytes, NULL)));
    }
}

/* In each process, after the fork. */
static int link_attach(struct link *link, bool is_rank)
{
    if (link->pipes) {
        link->to_fd = link->fds[is_rank][1];
        link->from_fd = link->fds[!is_rank][0];
        close(link->fds[is_rank][0]);
        close(link->fds[!is_rank][1]);
        return 0;
    }
    int rc = weir_channel_attach(&link->ends[0], link->memory[is_rank], link->bytes,
                                 WEIR_CHANNEL_SEND, NULL);
    return rc ? rc
              : weir_channel_attach(&link->ends[1], link->memory[!is_rank], link->bytes,
                                    WEIR_CHANNEL_RECEIVE, NULL);
}

static void link_close(struct link *link)
{
    if (link->pipes) {
        close(link->to_fd);
        close(link->from_fd);
    }
    for (int i = 0; i < 2 && !link->pipes; i++)
        munmap(link->memory[i], link->bytes);
}

static int write_whole(int fd, const void *bytes, size_t n)
{
    return write(fd, bytes, n) == (ssize_t)n ? 0 : -EIO; /* a pipe holds it */
}

static int read_whole(int fd, void *bytes, size_t n)
{
    for (size_t at = 0; at < n;) {
        ssize_t got = read(fd, (char *)bytes + at, n - at);
        if (got <= 0)
            return -EIO;
        at += (size_t)got;
    }
    return 0;
}

static int link_send(struct link *link, const void *message, size_t n)
{
    if (!link->pipes)
        return weir_channel_send(&link->ends[0], message, n);
    uint64_t length = n;
    int rc = write_whole(link->to_fd, &length, sizeof length);
    return rc ? rc : write_whole(link->to_fd, message, n);
}

/* -EAGAIN: there is no message. */
static int link_receive(struct link *link, void *message, size_t *n)
{
    if (!link->pipes)
        return weir_channel_receive(&link->ends[1], message, MESSAGE_BYTES, n);
    struct pollfd ready = { .fd = link->from_fd, .events = POLLIN };
    if (poll(&ready, 1, 0) == 0)
        return -EAGAIN;
    uint64_t length;
    int rc = read_whole(link->from_fd, &length, sizeof length);
    if (rc == 0 && length > MESSAGE_BYTES)
        rc = -EIO;
    *n = rc ? 0 : (size_t)length;
    return rc ? rc : read_whole(link->from_fd, message, *n);
}

/* ---- The rank's process --------------------------------------------------- */

enum command_kind {
    COMMAND_STEP, /* works and an order behind it */
    COMMAND_RUN,  /* `number` turns of the device */
    COMMAND_STOP
};

struct command {
    uint32_t kind;
    uint32_t number; /* of turns, or works */
};

/* Behind it the report, if it has any bytes. */
struct reply {
    int32_t rc;
    uint32_t bytes;
    uint64_t looked;
    uint64_t wrong;
};

static int obey(struct hand *hand, const struct command *command, size_t n, int32_t *result)
{
    const struct hand_work *works = (const struct hand_work *)(command + 1);
    const unsigned char *order = (const unsigned char *)(works + command->number);
    if (command->kind == COMMAND_STEP)
        *result = hand_step(hand, order, n - (size_t)(order - (const unsigned char *)command),
                            works, command->number);
    if (command->kind == COMMAND_RUN)
        weir_cpu_device_run(hand->device, command->number);
    return command->kind == COMMAND_STOP;
}

static int serve(struct hand *hand, struct link *link)
{
    static _Alignas(8) unsigned char in[MESSAGE_BYTES], out[MESSAGE_BYTES];
    struct reply *reply = (struct reply *)out;
    for (bool stop = false; !stop;) {
        size_t n;
        int rc = link_receive(link, in, &n);
        if (rc == -EAGAIN) {
            sched_yield();
            continue;
        }
        if (rc)
            return 2;
        *reply = (struct reply){ 0 };
        stop = obey(hand, (const struct command *)in, n, &reply->rc);
        size_t bytes;
        if (weir_rank_report(hand->rank, reply + 1, sizeof out - sizeof *reply, &bytes))
            return 3;
        reply->bytes = (uint32_t)bytes;
        reply->looked = hand->looked;
        reply->wrong = hand->wrong;
        if (link_send(link, out, sizeof *reply + bytes))
            return 4;
    }
    return 0;
}

static int rank_main(struct link *link, uint32_t index, uint64_t seed)
{
    struct hand hand;
    weir_rank_params params;
    weir_rank_params_init(&params);
    params.shape = &shapes[index];
    params.device_pages = DEVICE_PAGES;
    params.host_pages = HOST_PAGES;
    params.touch_threads = 1;
    if (link_attach(link, true) || hand_open(&hand, NULL, seed + index, params, index))
        return 5;
    int rc = serve(&hand, link);
    if (rc == 0 && weir_cpu_device_races(hand.device) > 0)
        rc = 6;
    hand_close(&hand);
    return weir_device_close(&hand.device) ? 7 : rc;
}

/* ---- The scheduler's process ---------------------------------------------- */

struct mail {
    size_t bytes;
    uint64_t report[64];
};

struct office {
    struct brain brain;
    struct link links[RANKS];
    pid_t pids[RANKS];
    struct reply last[RANKS];
    struct mail inbox[RANKS][INBOX]; /* reports that the caches have not seen, a ring */
    size_t first[RANKS], end[RANKS];
};

static void hire(struct office *office, bool pipes, uint64_t seed)
{
    for (uint32_t i = 0; i < RANKS; i++)
        link_create(&office->links[i], pipes);
    fflush(NULL);
    for (uint32_t i = 0; i < RANKS; i++) {
        office->pids[i] = fork();
        cr_assert(office->pids[i] >= 0);
        if (office->pids[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            _exit(rank_main(&office->links[i], i, seed));
        }
    }
    for (uint32_t i = 0; i < RANKS; i++)
        cr_assert(zero(int, link_attach(&office->links[i], false)));
}

/* Gives a command and waits for its reply, whose report goes to the inbox. */
static int command(struct office *office, uint32_t rank, const void *message, size_t n)
{
    static _Alignas(8) unsigned char in[MESSAGE_BYTES];
    struct link *link = &office->links[rank];
    cr_assert(zero(int, link_send(link, message, n)));
    int rc;
    int status;
    while ((rc = link_receive(link, in, &n)) == -EAGAIN) {
        cr_assert(waitpid(office->pids[rank], &status, WNOHANG) == 0, "rank %u died with %#x", rank,
                  status);
        sched_yield();
    }
    cr_assert(zero(int, rc));
    memcpy(&office->last[rank], in, sizeof office->last[rank]);
    const struct reply *reply = &office->last[rank];
    if (reply->bytes) {
        cr_assert(office->end[rank] - office->first[rank] < INBOX);
        struct mail *mail = &office->inbox[rank][office->end[rank]++ % INBOX];
        cr_assert(reply->bytes <= sizeof mail->report);
        mail->bytes = reply->bytes;
        memcpy(mail->report, in + sizeof *reply, reply->bytes);
    }
    return reply->rc;
}

static void run_rank(struct office *office, uint32_t rank, uint32_t turns)
{
    struct command run = { COMMAND_RUN, turns };
    cr_assert(zero(int, command(office, rank, &run, sizeof run)));
}

/* The caches see the oldest report of a rank that they have not seen. */
static void deliver(struct office *office, uint32_t rank)
{
    if (office->first[rank] == office->end[rank])
        return;
    struct mail *mail = &office->inbox[rank][office->first[rank]++ % INBOX];
    brain_report(&office->brain, rank, mail->report, mail->bytes);
}

static void give_order(struct office *office)
{
    static _Alignas(8) unsigned char out[MESSAGE_BYTES];
    struct brain *b = &office->brain;
    struct command step = { COMMAND_STEP, (uint32_t)b->n_works };
    size_t works = b->n_works * sizeof *b->works;
    memcpy(out, &step, sizeof step);
    memcpy(out + sizeof step, b->works, works);
    cr_assert(sizeof step + works + b->order_bytes <= sizeof out);
    memcpy(out + sizeof step + works, b->order, b->order_bytes);
    for (uint32_t i = 0; i < RANKS; i++) {
        int rc;
        while ((rc = command(office, i, out, sizeof step + works + b->order_bytes)) == -EAGAIN ||
               rc == -EBUSY)
            run_rank(office, i, 20);
        cr_assert(zero(int, rc));
    }
}

static void random_steps(struct office *office, int n)
{
    struct random *random = &office->brain.random;
    for (int step = 0; step < n; step++) {
        if (brain_step(&office->brain, 1 + random_below(random, 2)))
            give_order(office);
        for (uint32_t i = 0; i < 3 * RANKS; i++) {
            uint32_t rank = random_below(random, RANKS);
            if (random_percent(random, 50))
                run_rank(office, rank, random_below(random, 40));
            if (random_percent(random, 70))
                deliver(office, random_below(random, RANKS));
        }
        brain_poll(&office->brain);
    }
}

static void settle(struct office *office)
{
    for (int i = 0; i < 24; i++) {
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            run_rank(office, rank, 100000);
            run_rank(office, rank, 100000); /* what the first has let start */
            while (office->first[rank] != office->end[rank])
                deliver(office, rank);
        }
        brain_poll(&office->brain);
        if (i < 20 && brain_step(&office->brain, 0))
            give_order(office);
    }
    cr_assert(zero(u64, brain_stats(&office->brain).orders_in_flight));
    cr_assert(zero(u64, brain_stats(&office->brain).write_backs_in_flight));
}

static void dismiss(struct office *office)
{
    for (uint32_t i = 0; i < RANKS; i++) {
        struct command stop = { COMMAND_STOP, 0 };
        cr_assert(zero(int, command(office, i, &stop, sizeof stop)));
        cr_assert(zero(u64, office->last[i].wrong), "rank %u", i);
        cr_assert(office->last[i].looked > 10000);
        int status;
        cr_assert(eq(int, waitpid(office->pids[i], &status, 0), office->pids[i]));
        cr_assert(zero(int, status), "rank %u: %#x", i, (unsigned)status);
        link_close(&office->links[i]);
    }
}

static uint64_t run_office(bool pipes, uint64_t seed)
{
    struct office *office = calloc(1, sizeof *office);
    cr_assert(ne(ptr, office, NULL));
    hire(office, pipes, seed);
    brain_open(&office->brain, seed, RANKS, DEVICE_PAGES, HOST_PAGES);
    random_steps(office, 50);
    settle(office);
    cr_assert(brain_stats(&office->brain).loaded_pages > 0);
    uint64_t digest = weir_cache_digest(office->brain.caches[0]);
    dismiss(office);
    brain_close(&office->brain);
    free(office);
    return digest;
}

/* The transport is no part of what is decided. */
Test(rank_processes, over_channels_and_over_pipes, .timeout = 60)
{
    for (uint64_t seed = 1; seed <= 3; seed++)
        cr_assert(eq(u64, run_office(false, seed), run_office(true, seed)));
}

/* Reports all that may be in flight as failed; the caches refuse what is not. */
static void give_up(struct brain *b)
{
    uint64_t steps = brain_stats(b).steps;
    for (uint64_t number = 1; number <= steps; number++) {
        for (uint32_t i = 0; i < 3 * RANKS; i++) {
            weir_report_item item = { .number = number, .rc = -EIO, .kind = 1 + i % 3 };
            uint64_t report[8];
            size_t n;
            cr_assert(zero(int, weir_report_encode(&item, 1, report, sizeof report, &n, NULL)));
            int rcs[2];
            for (int c = 0; c < 2; c++)
                rcs[c] = weir_cache_report(b->caches[c], i / 3, report, n);
            cr_assert(eq(int, rcs[0], rcs[1]));
        }
    }
    brain_same(b);
}

/* A rank that is killed stops neither the scheduler nor the other rank. */
Test(rank_processes, a_rank_that_dies_hangs_nobody, .timeout = 60)
{
    struct office *office = calloc(1, sizeof *office);
    cr_assert(ne(ptr, office, NULL));
    hire(office, false, 9);
    brain_open(&office->brain, 9, RANKS, DEVICE_PAGES, HOST_PAGES);
    random_steps(office, 10);
    kill(office->pids[1], SIGKILL);
    int status;
    cr_assert(eq(int, waitpid(office->pids[1], &status, 0), office->pids[1]));
    unsigned char message[100] = { 0 };
    int n = 0;
    while (link_send(&office->links[1], message, sizeof message) == 0)
        n++;
    cr_assert(eq(int, link_send(&office->links[1], message, sizeof message), -EAGAIN));
    cr_assert(n > 1);
    size_t bytes;
    cr_assert(eq(int, link_receive(&office->links[1], message, &bytes), -EAGAIN));
    run_rank(office, 0, 100);
    struct command stop = { COMMAND_STOP, 0 };
    cr_assert(zero(int, command(office, 0, &stop, sizeof stop)));
    cr_assert(eq(int, waitpid(office->pids[0], &status, 0), office->pids[0]));
    /* Its reports never come, and until the scheduler says that all of it has
     * failed, the caches keep what is in flight. */
    cr_assert(brain_stats(&office->brain).orders_in_flight > 0);
    give_up(&office->brain);
    cr_assert(zero(u64, brain_stats(&office->brain).orders_in_flight));
    brain_close(&office->brain);
    for (int i = 0; i < RANKS; i++)
        link_close(&office->links[i]);
    free(office);
}
