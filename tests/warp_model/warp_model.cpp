/* SPDX-License-Identifier: Apache-2.0 */
#include "warp_model.h"
#include "warp_model.hpp"

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <ucontext.h>
#include <vector>

#include "bank_gather_tma.cu"
#include "bank_gather_vector.cu"
#include "expert_ensure.cu"
#include "page_copy_tma.cu"
#include "page_copy_vector.cu"

namespace
{
constexpr size_t STACK_BYTES = 64u << 10;

struct Load {
    uint32_t to;
    uint64_t from;
    uint32_t bytes;
};
struct Barrier {
    bool ready = false, armed = false;
    uint32_t expected = 0, arriving = 0, phase = 0;
    std::vector<Load> loads;
};
struct Store {
    uint64_t to;
    uint32_t from, bytes;
    bool read = false, written = false;
    std::vector<uint8_t> content;
};
struct Lane;
struct Cta {
    std::vector<uint8_t> memory;
    uint8_t *base;
    std::map<uint32_t, Barrier> barriers;
    uint32_t arrived = 0, generation = 0; /* at cta_sync */
    std::vector<Lane *> lanes;
};
struct Warp {
    Cta *cta;
    uint32_t arrived = 0, generation = 0;
    uint64_t values[2][32];
    Lane *lanes[32];
};
struct Lane {
    ucontext_t context;
    std::vector<uint8_t> stack;
    Warp *warp;
    warp_model::Here here;
    bool ended = false, blocked = false;
    std::vector<Store> open;
    std::deque<std::vector<Store>> groups;
};

ucontext_t scheduler;
Lane *lane;
std::vector<std::unique_ptr<Lane>> lanes;
const warp_model_launch *launch_;
warp_model_counts counts_;
std::string failure;
uint64_t random_state;
Warp *shy;
uint32_t shy_rounds;

uint32_t draw(uint32_t n)
{
    random_state = random_state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return static_cast<uint32_t>(random_state >> 33) % n;
}

void yield()
{
    swapcontext(&lane->context, &scheduler);
}

void must(bool condition, const char *what)
{
    if (condition)
        return;
    if (failure.empty())
        failure = what;
    lane->ended = true;
    for (;;)
        yield();
}

void read_store(Store &s)
{
    if (s.read)
        return;
    const uint8_t *from = lane->warp->cta->base + s.from;
    s.content.assign(from, from + s.bytes);
    s.read = true;
}
void write_store(Store &s)
{
    if (s.written)
        return;
    read_store(s);
    memcpy(reinterpret_cast<void *>(s.to), s.content.data(), s.bytes);
    s.written = true;
}

void run_lane()
{
    std::string name = launch_->kernel;
    if (name == "weir_pages_tma")
        weir_pages_tma(*static_cast<const weir_pages_args *>(launch_->args));
    else if (name == "weir_rows_tma")
        weir_rows_tma(*static_cast<const weir_rows_args *>(launch_->args));
    else if (name == "weir_pages_vector")
        weir_pages_vector(*static_cast<const weir_pages_args *>(launch_->args));
    else if (name == "weir_rows_vector")
        weir_rows_vector(*static_cast<const weir_rows_args *>(launch_->args));
    else if (name == "weir_gather_tma")
        weir_gather_tma(*static_cast<const weir_gather_args *>(launch_->args));
    else if (name == "weir_gather_few_tma")
        weir_gather_few_tma(*static_cast<const weir_gather_few_args *>(launch_->args));
    else if (name == "weir_gather_vector")
        weir_gather_vector(*static_cast<const weir_gather_args *>(launch_->args));
    else if (name == "weir_gather_few_vector")
        weir_gather_few_vector(*static_cast<const weir_gather_few_args *>(launch_->args));
    else if (name == "weir_expert_ensure")
        weir_expert_ensure(*static_cast<const weir_expert_args *>(launch_->args));
    else if (name == "weir_expert_reset")
        weir_expert_reset(*static_cast<const weir_expert_args *>(launch_->args));
    else
        must(false, "no such kernel");
    must(lane->open.empty(), "stores were not committed");
    for (auto &group : lane->groups)
        for (auto &s : group)
            must(s.written, "stores are under way at the end");
    lane->ended = true;
    for (;;)
        yield();
}

/* Somebody's store goes on by itself now and then. */
void make_progress()
{
    if (draw(4) != 0 || lane->groups.empty())
        return;
    auto &group = lane->groups[draw(static_cast<uint32_t>(lane->groups.size()))];
    for (auto &s : group)
        draw(2) ? read_store(s) : write_store(s);
}
} // namespace

namespace warp_model
{
const Here &here()
{
    return lane->here;
}
uint8_t *shared()
{
    return lane->warp->cta->base;
}
const uint64_t *exchange(uint64_t value)
{
    Warp *warp = lane->warp;
    uint32_t generation = warp->generation;
    uint64_t *values = warp->values[generation % 2];
    values[lane->here.thread_index.x % 32] = value;
    if (++warp->arrived == 32) {
        warp->arrived = 0;
        warp->generation++;
        for (Lane *other : warp->lanes)
            other->blocked = false;
    } else {
        lane->blocked = true;
    }
    while (warp->generation == generation)
        yield();
    return values;
}
} // namespace warp_model

void cta_sync()
{
    Cta *cta = lane->warp->cta;
    uint32_t generation = cta->generation;
    if (++cta->arrived == launch_->threads) {
        cta->arrived = 0;
        cta->generation++;
        for (Lane *other : cta->lanes)
            other->blocked = false;
    } else {
        lane->blocked = true;
    }
    while (cta->generation == generation)
        yield();
}

static Barrier &barrier_at(uint32_t address)
{
    must(address % 8 == 0, "a barrier is misaligned");
    return lane->warp->cta->barriers[address];
}
void barrier_init(uint32_t barrier)
{
    must(!barrier_at(barrier).ready, "a barrier is initialised twice");
    barrier_at(barrier).ready = true;
}
void barrier_init_fence()
{
}
void barrier_arm(uint32_t barrier, uint32_t bytes)
{
    Barrier &b = barrier_at(barrier);
    must(b.ready && !b.armed, "a barrier is armed twice");
    must(bytes > 0 && bytes < 1u << 20, "a barrier expects too much or nothing");
    b.armed = true;
    b.expected = bytes;
    counts_.arms++;
    if (lane->here.block_index.x < 16)
        counts_.cta_bytes[lane->here.block_index.x] += bytes;
}
void barrier_wait(uint32_t barrier, uint32_t parity)
{
    make_progress();
    for (uint32_t spins = 0;; spins++) {
        Barrier &b = barrier_at(barrier);
        if (b.phase % 2 != parity)
            return;
        must(b.arriving <= b.expected || !b.armed, "more bytes than a barrier expects");
        if (b.armed && b.arriving == b.expected) {
            for (const Load &l : b.loads)
                memcpy(lane->warp->cta->base + l.to, reinterpret_cast<const void *>(l.from),
                       l.bytes);
            b.loads.clear();
            b.armed = false;
            b.arriving = 0;
            b.phase++;
            return;
        }
        must(spins < 5000, "a barrier is waited for in vain");
        yield();
    }
}

static void check_shared(uint32_t address, uint32_t bytes, uint32_t alignment)
{
    must(address % alignment == 0, "an address in shared memory is misaligned");
    must(address + bytes <= launch_->shared_bytes, "beyond the end of shared memory");
}
void bulk_load(uint32_t to, uint64_t from, uint32_t bytes, uint32_t barrier)
{
    must(from % 16 == 0 && bytes % 16 == 0 && bytes > 0, "a bulk load is misaligned");
    check_shared(to, bytes, 16);
    memset(lane->warp->cta->base + to, 0xA5, bytes);
    Barrier &b = barrier_at(barrier);
    must(b.armed, "a load for a barrier that is not armed");
    b.loads.push_back({ to, from, bytes });
    b.arriving += bytes;
    counts_.loads++;
}
void bulk_load_box(uint32_t to, const void *map, uint32_t layer, uint32_t row, uint32_t barrier)
{
    warp_model_map m;
    memcpy(&m, map, sizeof m);
    check_shared(to, m.box_rows * m.row_bytes, 128);
    must(layer < m.n_layers && row + m.box_rows <= m.n_rows, "a box leaves its map");
    Barrier &b = barrier_at(barrier);
    must(b.armed, "a box for a barrier that is not armed");
    memset(lane->warp->cta->base + to, 0xA5, m.box_rows * m.row_bytes);
    for (uint32_t i = 0; i < m.box_rows; i++)
        b.loads.push_back({ to + i * m.row_bytes,
                            m.base + layer * m.layer_stride + (row + i) * m.row_stride,
                            m.row_bytes });
    b.arriving += m.box_rows * m.row_bytes;
    counts_.boxes++;
}
void bulk_store(uint64_t to, uint32_t from, uint32_t bytes)
{
    must(to % 16 == 0 && bytes % 16 == 0 && bytes > 0, "a bulk store is misaligned");
    check_shared(from, bytes, 16);
    lane->open.push_back(Store{ to, from, bytes, false, false, {} });
    counts_.stores++;
}
void bulk_commit()
{
    lane->groups.push_back(std::move(lane->open));
    lane->open.clear();
}
void bulk_wait_group(uint32_t newest, bool read)
{
    make_progress();
    if (lane->groups.size() <= newest)
        return;
    size_t n = lane->groups.size() - newest;
    for (size_t i = 0; i < n; i++)
        for (auto &s : lane->groups[i])
            read ? read_store(s) : write_store(s);
    if (!read)
        lane->groups.erase(lane->groups.begin(), lane->groups.begin() + static_cast<long>(n));
}
void map_acquire(const void *map)
{
    must(reinterpret_cast<uintptr_t>(map) % 128 == 0, "a map is misaligned");
}
bool arrive_last(uint32_t *counter, uint32_t last)
{
    uint32_t before = *counter;
    *counter = before >= last ? 0 : before + 1;
    return before == last;
}
void store_release(uint32_t *word, uint32_t value)
{
    if (launch_->on_word)
        launch_->on_word(launch_->user, word, value);
    *word = value;
}

static void make_lane(Warp *warp, uint32_t cta, uint32_t thread)
{
    auto made = std::make_unique<Lane>();
    made->stack.resize(STACK_BYTES);
    made->warp = warp;
    made->here = { { launch_->ctas }, { launch_->threads }, { cta }, { thread } };
    warp->lanes[thread % 32] = made.get();
    warp->cta->lanes.push_back(made.get());
    getcontext(&made->context);
    made->context.uc_stack.ss_sp = made->stack.data();
    made->context.uc_stack.ss_size = made->stack.size();
    made->context.uc_link = nullptr;
    makecontext(&made->context, run_lane, 0);
    lanes.push_back(std::move(made));
}

/* Even turns would never leave one warp far behind the others; so one is put off
 * for a while, then another. */
static bool choose_lanes(std::vector<Lane *> &ready)
{
    if (shy_rounds-- == 0) {
        shy = lanes[draw(static_cast<uint32_t>(lanes.size()))]->warp;
        shy_rounds = draw(64);
    }
    ready.clear();
    for (auto &l : lanes)
        if (!l->ended && !l->blocked && l->warp != shy)
            ready.push_back(l.get());
    if (!ready.empty())
        return true;
    for (auto &l : lanes)
        if (!l->ended && !l->blocked)
            ready.push_back(l.get());
    return !ready.empty();
}

const char *warp_model_run(const warp_model_launch *launch, warp_model_counts *counts)
{
    launch_ = launch;
    counts_ = {};
    failure.clear();
    random_state = launch->seed;
    shy_rounds = 0;
    std::vector<std::unique_ptr<Cta>> ctas;
    std::vector<std::unique_ptr<Warp>> warps;
    for (uint32_t c = 0; c < launch->ctas; c++) {
        ctas.push_back(std::make_unique<Cta>());
        ctas.back()->memory.resize(launch->shared_bytes + 1024);
        uintptr_t at = reinterpret_cast<uintptr_t>(ctas.back()->memory.data());
        ctas.back()->base = ctas.back()->memory.data() + (1024 - at % 1024) % 1024;
        for (uint32_t t = 0; t < launch->threads; t++) {
            if (t % 32 == 0) {
                warps.push_back(std::make_unique<Warp>());
                warps.back()->cta = ctas.back().get();
            }
            make_lane(warps.back().get(), c, t);
        }
    }
    std::vector<Lane *> ready;
    while (failure.empty() && choose_lanes(ready)) {
        /* Each that can go on does, from one of them on. */
        uint32_t from = draw(static_cast<uint32_t>(ready.size()));
        for (size_t i = 0; i < ready.size() && failure.empty(); i++) {
            lane = ready[(from + i) % ready.size()];
            swapcontext(&scheduler, &lane->context);
        }
    }
    for (auto &l : lanes)
        if (failure.empty() && !l->ended)
            failure = "lanes wait for each other for ever";
    lanes.clear();
    if (counts)
        *counts = counts_;
    return failure.empty() ? nullptr : failure.c_str();
}
