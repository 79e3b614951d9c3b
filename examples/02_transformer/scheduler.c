/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler.h"

#include "chat.h"
#include "check.h"

#include <errno.h>
#include <string.h>

#define MAX_IDLE_TURNS 10000

/* A step that has been sent and not answered by all ranks. */
struct flight {
    uint64_t step; /* 0: none */
    uint32_t n_answered;
    uint32_t n_rows;
    struct flight_row {
        struct chat *chat;
        uint32_t life;
        uint32_t position;
        int32_t token;
    } rows[MAX_ROWS];
    struct model_answer answers[MAX_ROWS];
};

struct scheduler {
    struct scheduler_params with;
    struct summary *summary;
    weir_cache *cache;
    uint64_t now_ns; /* a clock that only turns move, so that nothing hangs on time */
    uint32_t scene;
    struct chat chats[MAX_CHATS];
    struct chat *queue[MAX_CHATS]; /* first come */
    uint32_t n_queued;
    struct chat *running[MAX_BATCH]; /* oldest first */
    uint32_t n_running;
    bool hold_admission; /* until a chat ends: what was preempted would come back at once */
    bool write_waiting;  /* the cache wants a step to write back with */
    uint32_t n_idle;
    uint32_t n_flights;
    struct flight flights[MAX_STEPS];
    struct plan plan;
    struct note note;
};

/* ---- Lists --------------------------------------------------------------- */

static void remove_from(struct chat **list, uint32_t *n, const struct chat *chat)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < *n; i++)
        if (list[i] != chat)
            list[kept++] = list[i];
    *n = kept;
}

/* Only the first of the queue may stand in the cache's line: pages set aside for
 * one behind it would be missing in front. */
static void queue_first(struct scheduler *scheduler, struct chat *chat)
{
    if (scheduler->n_queued > 0)
        chat_close(scheduler->queue[0]);
    memmove(scheduler->queue + 1, scheduler->queue,
            scheduler->n_queued++ * sizeof scheduler->queue[0]);
    scheduler->queue[0] = chat;
    chat->state = CHAT_QUEUED;
}

static void run(struct scheduler *scheduler, struct chat *chat)
{
    scheduler->running[scheduler->n_running++] = chat;
    chat->state = CHAT_RUNNING;
}

/* ---- Ends ---------------------------------------------------------------- */

static void finish(struct scheduler *scheduler, struct chat *chat)
{
    remove_from(scheduler->running, &scheduler->n_running, chat);
    chat_close(chat);
    chat->state = CHAT_DONE;
    scheduler->hold_admission = false;
}

/* Its pages that are full stay in the index, so that little is computed twice. */
static void requeue(struct scheduler *scheduler, struct chat *chat)
{
    remove_from(scheduler->running, &scheduler->n_running, chat);
    chat_close(chat);
    queue_first(scheduler, chat);
}

/* What was computed on pages that did not arrive is wrong: its answers come to a
 * life that has ended. The next one finds what is good in the index. */
static void recompute(struct scheduler *scheduler, struct chat *chat)
{
    requeue(scheduler, chat);
    scheduler->summary->recomputed++;
}

static void preempt_youngest(struct scheduler *scheduler)
{
    requeue(scheduler, scheduler->running[scheduler->n_running - 1]);
    scheduler->hold_admission = scheduler->n_running > 0;
    scheduler->summary->preempted++;
}

/* ---- Admission ------------------------------------------------------------- */

/* Pages for all tokens that there are, in one act: a chat that runs never waits
 * for the rest of its prompt. -EAGAIN: it stands in line. */
static int admit(struct scheduler *scheduler, struct chat *chat)
{
    weir_request request;
    weir_reserved reserved;
    if (chat->seq.id == 0)
        CHECK(chat_open(chat, scheduler->cache));
    weir_request_init(&request);
    request.total_tokens = chat->n_known;
    request.expect_tokens = chat->n_target;
    int rc = weir_seq_reserve(chat->seq, &request, &reserved);
    if (rc == -ENOSPC)
        chat_close(chat);
    if (rc)
        return rc;
    chat->hit = reserved.hit;
    chat->n_sent = chat->n_committed = (uint32_t)reserved.hit.n_tokens;
    run(scheduler, chat);
    return 0;
}

static void admit_queued(struct scheduler *scheduler)
{
    while (scheduler->n_queued > 0 && scheduler->n_running < MAX_BATCH &&
           !scheduler->hold_admission) {
        struct chat *chat = scheduler->queue[0];
        int rc = admit(scheduler, chat);
        if (rc == -EAGAIN || rc == -ENOSPC)
            return;
        CHECK(rc);
        remove_from(scheduler->queue, &scheduler->n_queued, chat);
    }
}

static void begin_scene(struct scheduler *scheduler)
{
    const struct script *script = scheduler->with.script;
    for (uint32_t i = 0; i < script->n_chats; i++) {
        struct chat *chat = &scheduler->chats[i];
        if (chat->prompt->scene != scheduler->scene || script->chats[i].sample > 0)
            continue;
        scheduler->queue[scheduler->n_queued++] = chat;
        chat->state = CHAT_QUEUED;
    }
}

/* ---- A step ---------------------------------------------------------------- */

/* Room for the next token. A chat that gets -EAGAIN sits this step out; for one
 * that nothing in flight can help, the youngest makes room, be it itself. */
static bool make_room(struct scheduler *scheduler, struct chat *chat, uint32_t total)
{
    weir_request request;
    weir_request_init(&request);
    request.total_tokens = total;
    request.expect_tokens = chat->n_target;
    for (;;) {
        int rc = weir_seq_reserve(chat->seq, &request, NULL);
        if (rc == 0 || rc == -EAGAIN)
            return rc == 0;
        REQUIRE(rc == -ENOSPC);
        preempt_youngest(scheduler);
        if (chat->state != CHAT_RUNNING)
            return false;
    }
}

static void add_rows(struct scheduler *scheduler, struct chat *chat, struct flight *flight)
{
    struct plan *plan = &scheduler->plan;
    struct plan_part *part = &plan->parts[plan->n_parts];
    uint32_t n = chat_next_rows(chat, MAX_ROWS - plan->n_rows);
    *part = (struct plan_part){ .chat = chat->index, .first_row = plan->n_rows, .n_rows = n };
    for (uint32_t position = chat->n_sent; position < chat->n_sent + n; position++) {
        int32_t token = chat_row_token(chat, position);
        flight->rows[plan->n_rows] = (struct flight_row){ chat, chat->life, position, token };
        plan->rows[plan->n_rows++] =
            (struct plan_row){ .input = prompt_input(chat->prompt, position, token),
                               .part = plan->n_parts,
                               .wanted = chat_wants(chat, position) };
    }
    plan->n_parts++;
}

/* Who decodes goes first, since somebody is reading along; prompts share the rows
 * that are left. Only who decodes may need room, and who makes it is the youngest,
 * so nobody leaves the batch again. */
static void choose_rows(struct scheduler *scheduler, struct flight *flight)
{
    struct plan *plan = &scheduler->plan;
    *plan = (struct plan){ .kind = PLAN_STEP };
    for (uint32_t i = 0; i < scheduler->n_running; i++) {
        struct chat *chat = scheduler->running[i];
        uint32_t n = chat_next_rows(chat, MAX_ROWS - plan->n_rows);
        if (chat_can_go_on(chat) && chat_decodes(chat) && n > 0 &&
            make_room(scheduler, chat, chat->n_sent + n))
            add_rows(scheduler, chat, flight);
    }
    for (uint32_t i = 0; i < scheduler->n_running && plan->n_rows < MAX_ROWS; i++) {
        struct chat *chat = scheduler->running[i];
        if (chat_can_go_on(chat) && !chat_decodes(chat))
            add_rows(scheduler, chat, flight);
    }
}

/* The chats of the batch join the step: their loads start with it, and what it
 * computes of tokens that are known is committed with it. */
static void add_chats(struct scheduler *scheduler, weir_step step, struct flight *flight)
{
    struct plan *plan = &scheduler->plan;
    for (uint32_t p = 0; p < plan->n_parts; p++) {
        struct plan_part *part = &plan->parts[p];
        struct chat *chat = flight->rows[part->first_row].chat;
        size_t n_pages;
        CHECK(weir_step_add(step, chat->seq));
        CHECK(weir_seq_pages(chat->seq, 0, PAGE_TOKENS, part->pages, MAX_CHAT_PAGES, &n_pages));
        part->n_pages = (chat->n_sent + part->n_rows - 1) / PAGE_TOKENS + 1;
        REQUIRE(part->n_pages <= n_pages);
        plan->load_fails |= chat->prompt->load_fails && chat->life == 0 && chat->hit.n_host > 0;
        chat_sent(chat, flight->step, part->n_rows);
        chat_commit(chat);
    }
}

/* A client may hang up at any time; here it does when its load has just been
 * ordered. The pages that were to be loaded are the index's, not the chat's. */
static void hang_up(struct scheduler *scheduler, const struct flight *flight)
{
    for (uint32_t p = 0; p < scheduler->plan.n_parts; p++) {
        struct chat *chat = flight->rows[scheduler->plan.parts[p].first_row].chat;
        if (!chat->prompt->abort_in_load)
            continue;
        scheduler->summary->aborted_in_load += chat->hit.n_host > 0;
        finish(scheduler, chat);
    }
}

/* Plans a step and sends it to all ranks; `must`: also without a row. */
static bool send_step(struct scheduler *scheduler, bool must)
{
    struct plan *plan = &scheduler->plan;
    weir_step step;
    if (scheduler->n_flights == scheduler->with.ahead)
        return false;
    int rc = weir_step_begin(&step, scheduler->cache);
    if (rc == -EAGAIN)
        return false;
    CHECK(rc);
    uint64_t number = scheduler->summary->steps + 1;
    struct flight *flight = &scheduler->flights[number % MAX_STEPS];
    REQUIRE(flight->step == 0);
    *flight = (struct flight){ .step = number };
    choose_rows(scheduler, flight);
    if (plan->n_rows == 0 && !must) {
        CHECK(weir_step_abort(&step));
        flight->step = 0;
        return false;
    }
    add_chats(scheduler, step, flight);

    const void *order;
    CHECK(weir_step_end(&step, &order, &plan->order_bytes));
    REQUIRE(plan->order_bytes <= sizeof plan->order);
    memcpy(plan->order, order, plan->order_bytes);
    for (uint32_t r = 0; r < scheduler->with.cluster->n_ranks; r++)
        plan_send(scheduler->with.cluster->ends[r], plan);
    flight->n_rows = plan->n_rows;
    scheduler->n_flights++;
    scheduler->write_waiting = false;
    scheduler->summary->steps++;
    scheduler->summary->rows += plan->n_rows;
    hang_up(scheduler, flight);
    return true;
}

/* ---- What comes back ------------------------------------------------------- */

static void poll_cache(struct scheduler *scheduler)
{
    weir_cache_event events[8];
    size_t n;
    scheduler->now_ns += 1000000;
    do {
        CHECK(weir_cache_poll(scheduler->cache, scheduler->now_ns, events, 8, &n));
        for (size_t i = 0; i < n; i++) {
            if (events[i].kind == WEIR_EVENT_WRITE_WAITING)
                scheduler->write_waiting = true;
            if (events[i].kind == WEIR_EVENT_LOAD_FAILED)
                recompute(scheduler, events[i].user);
        }
    } while (n > 0);
}

/* The second sample begins where the first one does, with another first token. It
 * shares the prompt's full pages and gets a copy of the one in which it ends; the
 * first one may be steps ahead in that page by now. Without room for the copy it
 * waits like a new chat, and finds the full pages in the index. */
static void split(struct scheduler *scheduler, struct chat *chat, const struct model_answer *answer)
{
    struct chat *other = &scheduler->chats[chat->index + 1];
    struct model_answer second = { answer->digest, answer->runner_up, answer->token };
    REQUIRE(other->prompt == chat->prompt);
    chat_take(other, other->n_prompt - 1, NEXT_TOKEN, &second);
    void *user = other;
    int rc = scheduler->n_running == MAX_BATCH
                 ? -EAGAIN
                 : weir_seq_fork(&other->seq, 1, chat->seq, chat->n_prompt, &user);
    if (rc == -EAGAIN || rc == -ENOSPC) {
        queue_first(scheduler, other);
        return;
    }
    CHECK(rc);
    other->n_sent = other->n_committed = other->n_prompt;
    run(scheduler, other);
}

static void take_row(struct scheduler *scheduler, const struct flight_row *row,
                     const struct model_answer *answer)
{
    struct chat *chat = row->chat;
    bool taken = chat_take(chat, row->position, row->token, answer);
    if (chat->prompt->n_draft > 0 && row->position >= chat->n_prompt) {
        scheduler->summary->drafts_accepted += taken;
        scheduler->summary->drafts_refused += !taken;
    }
    if (taken && chat->prompt->two_samples && chat->outcome->n == 1)
        split(scheduler, chat, answer);
}

static void take_answers(struct scheduler *scheduler, struct flight *flight)
{
    for (uint32_t i = 0; i < flight->n_rows; i++) {
        const struct flight_row *row = &flight->rows[i];
        struct chat *chat = row->chat;
        if (row->life != chat->life || chat->state != CHAT_RUNNING)
            continue;
        if (flight->answers[i].digest)
            take_row(scheduler, row, &flight->answers[i]);
        if (i + 1 < flight->n_rows && flight->rows[i + 1].chat == chat)
            continue;
        chat_settle(chat, flight->step);
        chat_commit(chat);
        if (chat->n_known == chat->n_target)
            finish(scheduler, chat);
    }
    flight->step = 0;
    scheduler->n_flights--;
}

/* Answers count when all ranks have given them, and they give the same. */
static void on_answers(struct scheduler *scheduler, const struct note *note)
{
    struct flight *flight = &scheduler->flights[note->step % MAX_STEPS];
    REQUIRE(flight->step == note->step);
    size_t bytes = flight->n_rows * sizeof note->answers[0];
    if (flight->n_answered++ == 0)
        memcpy(flight->answers, note->answers, bytes);
    else
        REQUIRE(memcmp(flight->answers, note->answers, bytes) == 0);
    if (flight->n_answered < scheduler->with.cluster->n_ranks)
        return;
    poll_cache(scheduler);
    take_answers(scheduler, flight);
}

static bool receive(struct scheduler *scheduler, int wait_ms)
{
    const struct cluster *cluster = scheduler->with.cluster;
    struct note *note = &scheduler->note;
    int rank = way_wait(cluster->ends, cluster->n_ranks, wait_ms);
    if (rank < 0)
        return false;
    way_receive(cluster->ends[rank], note, sizeof *note, -1);
    if (note->kind == NOTE_REPORT)
        CHECK(
            weir_cache_report(scheduler->cache, (uint32_t)rank, note->report, note->report_bytes));
    else
        on_answers(scheduler, note);
    return true;
}

/* ---- The loop -------------------------------------------------------------- */

static weir_stats stats_of(const struct scheduler *scheduler)
{
    weir_stats stats = { .struct_size = sizeof stats };
    CHECK(weir_cache_get_stats(scheduler->cache, &stats));
    return stats;
}

static bool scene_is_over(const struct scheduler *scheduler)
{
    for (uint32_t i = 0; i < scheduler->with.script->n_chats; i++) {
        const struct chat *chat = &scheduler->chats[i];
        if (chat->prompt->scene == scheduler->scene && chat->state != CHAT_DONE)
            return false;
    }
    return true;
}

/* Waits for a rank if any has something to do. If not, an empty step gives the
 * cache the chance to write back what a chat in line waits for. */
static void wait_or_stir(struct scheduler *scheduler)
{
    weir_stats stats = stats_of(scheduler);
    bool busy = scheduler->n_flights + stats.orders_in_flight + stats.write_backs_in_flight > 0;
    if (scheduler->write_waiting && send_step(scheduler, true))
        return;
    if (busy) {
        scheduler->n_idle = 0;
        receive(scheduler, -1);
        return;
    }
    REQUIRE(++scheduler->n_idle < MAX_IDLE_TURNS);
    REQUIRE(send_step(scheduler, true));
}

static void serve_scene(struct scheduler *scheduler)
{
    const char *reason = "";
    begin_scene(scheduler);
    for (;;) {
        while (receive(scheduler, 0))
            ;
        poll_cache(scheduler);
        admit_queued(scheduler);
        if (send_step(scheduler, false))
            continue;
        weir_stats stats = stats_of(scheduler);
        if (scene_is_over(scheduler) && !scheduler->write_waiting && scheduler->n_flights == 0 &&
            stats.orders_in_flight == 0 && stats.write_backs_in_flight == 0)
            break;
        wait_or_stir(scheduler);
    }
    if (weir_cache_check(scheduler->cache, &reason))
        give_up(__FILE__, __LINE__, "weir_cache_check", reason);
}

static void summarise(struct scheduler *scheduler)
{
    struct summary *summary = scheduler->summary;
    weir_stats stats = stats_of(scheduler);
    summary->hit_device = stats.hit_pages_device;
    summary->hit_host = stats.hit_pages_host;
    summary->hit_loading = stats.hit_pages_loading;
    summary->duplicates = stats.duplicate_pages;
    summary->copied = stats.copied_pages;
}

static weir_cache *create_cache(const struct scheduler_params *params)
{
    weir_cache *cache;
    weir_cache_params brain;
    weir_cache_params_init(&brain);
    brain.page_tokens = PAGE_TOKENS;
    brain.device_pages = params->device_pages;
    brain.host_pages = params->host_pages;
    brain.n_ranks = params->cluster->n_ranks;
    brain.max_steps = MAX_STEPS;
    brain.max_write_backs = MAX_WRITE_BACKS;
    brain.max_seqs = MAX_CHATS;
    brain.log = weir_log_stderr(WEIR_LOG_WARN);
    CHECK(weir_cache_create(&cache, &brain));
    return cache;
}

void scheduler_run(const struct scheduler_params *params, struct outcome outcomes[MAX_CHATS],
                   struct summary *summary)
{
    struct scheduler *scheduler = calloc(1, sizeof *scheduler);
    REQUIRE(scheduler);
    *summary = (struct summary){ 0 };
    scheduler->with = *params;
    scheduler->summary = summary;
    scheduler->cache = create_cache(params);
    for (uint32_t i = 0; i < params->script->n_chats; i++)
        chat_init(&scheduler->chats[i], i, &params->script->chats[i], &params->right[i],
                  &outcomes[i]);
    for (; scheduler->scene < params->script->n_scenes; scheduler->scene++)
        serve_scene(scheduler);
    summarise(scheduler);
    CHECK(weir_cache_destroy(&scheduler->cache));
    free(scheduler);
}
