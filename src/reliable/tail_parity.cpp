// The sender's half of tail_code.hpp.
#include <algorithm>
#include <array>

#include "reliable/tail_code.hpp"

namespace farhaul::reliable {
namespace {

// The code's loops make eight rows at a time and read the data once for each such pass. A pass over a block is one job.
constexpr std::uint32_t kRowsPerPass = 8;

}  // namespace

const erasure::Code& TailCoding::rows(std::uint32_t k) {
    auto found = rows_.find(k);
    if (found == rows_.end()) {
        // Always all rows that there can be: the first ones are then the same for both ends, however many are sent.
        auto code = erasure::Code::create({erasure::Kind::kReedSolomon, k, 255 - k});
        found = rows_.emplace(k, std::move(*code)).first;  // k is one of TailLayout's sizes: it exists
    }
    return found->second;
}

const erasure::Code& TailCoding::columns(std::uint32_t blocks) {
    auto found = columns_.find(blocks);
    if (found == columns_.end()) {
        auto code = erasure::Code::create({erasure::Kind::kXor, blocks, 1});
        found = columns_.emplace(blocks, std::move(*code)).first;
    }
    return found->second;
}

struct TailParity::Work {
    struct Task {
        Work* work = nullptr;
        std::uint32_t index = 0;  // pass * blocks + block; behind those, a group
        bool ready = false;
    };
    TailLayout layout;
    TailPlan plan;
    std::size_t payload_bytes = 0;
    const std::byte* data = nullptr;
    std::uint64_t length = 0;
    const erasure::Code* rows = nullptr;
    const erasure::Code* columns = nullptr;
    std::unique_ptr<std::byte[]> storage;
    std::vector<Task> tasks;
    void (*ready)(void*) = nullptr;  // null once the owner is gone
    void* context = nullptr;
    std::uint32_t outstanding = 0;
    std::shared_ptr<Work> self;  // while an executor has tasks
    std::atomic<bool> cancelled{false};
    std::atomic<std::uint32_t> running{0};

    void run(const Task& task);
    void encode_block(std::uint32_t block, std::uint32_t first_row);
    std::uint32_t row_tasks() const { return layout.blocks * ((plan.rows + kRowsPerPass - 1) / kRowsPerPass); }
    void encode_columns(std::uint32_t group);
    std::byte* symbol(std::uint32_t packet) const { return const_cast<std::byte*>(data) + packet * payload_bytes; }
    std::size_t last_bytes(std::uint32_t last_packet) const {
        return last_packet + 1 == layout.packets ? length - std::uint64_t{last_packet} * payload_bytes : payload_bytes;
    }
    void submit(Executor& executor);
    static void work_on(void* task);
    static void finish(void* task);
};

void TailParity::Work::run(const Task& task) {
    if (data == nullptr) return;
    if (task.index < row_tasks())
        encode_block(task.index % layout.blocks, task.index / layout.blocks * kRowsPerPass);
    else
        encode_columns(task.index - row_tasks());
}

void TailParity::Work::encode_block(std::uint32_t block, std::uint32_t first_row) {
    std::array<std::byte*, TailLayout::kMostData> sources;
    std::array<std::byte*, kRowsPerPass> targets;
    const std::uint32_t rows_now = std::min(kRowsPerPass, plan.rows - first_row);
    const std::uint32_t size = layout.size_of(block);
    for (std::uint32_t i = 0; i < size; ++i) sources[i] = symbol(layout.packet_at(block, i));
    for (std::uint32_t row = 0; row < rows_now; ++row)
        targets[row] = storage.get() + (std::size_t{first_row + row} * layout.blocks + block) * payload_bytes;
    [[maybe_unused]] const auto encoded =
        rows->encode({payload_bytes, last_bytes(layout.packet_at(block, size - 1)), std::span(sources).first(size),
                      std::span(targets).first(rows_now)},
                     first_row);
    // The shape follows from the layout: it fits.
}

void TailParity::Work::encode_columns(std::uint32_t group) {
    std::vector<std::byte*> sources(layout.group_blocks());
    for (std::uint32_t position = 0; position < layout.largest(); ++position) {
        const std::uint32_t count = layout.column_blocks(group, position);
        std::byte* target =
            storage.get() +
            (std::size_t{plan.rows} * layout.blocks + std::size_t{group} * layout.largest() + position) * payload_bytes;
        if (count == 0) {  // sent all the same: the numbering knows no holes
            std::fill_n(target, payload_bytes, std::byte{});
            continue;
        }
        const std::uint32_t begin = layout.group_begin(group);
        for (std::uint32_t i = 0; i < count; ++i) sources[i] = symbol(layout.packet_at(begin + i, position));
        [[maybe_unused]] const auto encoded =
            columns->encode({payload_bytes, last_bytes(layout.packet_at(begin + count - 1, position)),
                             std::span(sources).first(count), std::span(&target, 1)});
    }
}

void TailParity::Work::work_on(void* context) {
    const Task& task = *static_cast<Task*>(context);
    Work& work = *task.work;
    work.running.fetch_add(1);
    if (!work.cancelled.load()) work.run(task);
    work.running.fetch_sub(1);
    if (work.cancelled.load()) work.running.notify_all();
}

void TailParity::Work::finish(void* context) {
    Task& task = *static_cast<Task*>(context);
    Work& work = *task.work;
    task.ready = true;
    const auto keep = work.self;
    if (--work.outstanding == 0) work.self.reset();
    if (work.ready != nullptr) work.ready(work.context);
}

void TailParity::Work::submit(Executor& executor) {
    outstanding = static_cast<std::uint32_t>(tasks.size());
    const auto keep = self;  // jobs may be done at once
    for (Task& task : tasks) {
        // Exclusive or is about twice as fast per byte.
        const std::uint64_t passes = task.index < row_tasks() ? 1 : (layout.group_blocks() + 1) / 2;
        executor.submit(
            {&Work::work_on, &Work::finish, &task, std::uint64_t{layout.largest()} * passes * payload_bytes});
    }
}

TailParity::TailParity(TailCoding& coding, const TailLayout& layout, TailPlan plan, std::uint32_t base,
                       const std::byte* data, std::uint64_t length, Executor* executor, void (*ready)(void*),
                       void* context)
    : layout_(layout),
      plan_(plan),
      base_(base),
      payload_bytes_(coding.payload_bytes()),
      planned_(plan.packets(layout)) {
    if (planned_ == 0 || (data == nullptr && executor == nullptr)) return;
    work_ = std::make_shared<Work>();
    work_->layout = layout;
    work_->plan = plan;
    work_->payload_bytes = payload_bytes_;
    work_->data = data;
    work_->length = length;
    work_->rows = &coding.rows(layout.k);
    if (plan.columns) work_->columns = &coding.columns(layout.group_blocks());
    if (data != nullptr)
        work_->storage = std::make_unique_for_overwrite<std::byte[]>(std::size_t{planned_} * payload_bytes_);
    // In the order in which they are sent.
    work_->tasks.resize(work_->row_tasks() + (plan.columns ? layout.groups : 0));
    for (std::uint32_t i = 0; i < work_->tasks.size(); ++i) work_->tasks[i] = {work_.get(), i, false};
    if (executor == nullptr) return;
    work_->ready = ready;
    work_->context = context;
    work_->self = work_;
    work_->submit(*executor);
}

TailParity::~TailParity() {
    if (!work_) return;
    work_->ready = nullptr;
    work_->cancelled.store(true);
    for (std::uint32_t running; (running = work_->running.load()) != 0;) work_->running.wait(running);
}

bool TailParity::encoded(std::uint32_t index) const {
    if (!work_) return true;
    const std::uint32_t rows = plan_.rows * layout_.blocks;
    Work::Task& task =
        work_->tasks[index < rows ? index / layout_.blocks / kRowsPerPass * layout_.blocks + index % layout_.blocks
                                  : work_->row_tasks() + (index - rows) / layout_.largest()];
    if (!task.ready && work_->ready == nullptr) {  // no executor: now
        work_->run(task);
        task.ready = true;
    }
    return task.ready;
}

TailParity::Run TailParity::next(std::uint32_t most) {
    const std::uint32_t rows = plan_.rows * layout_.blocks;
    const std::uint32_t end = std::min(queued_ < rows ? rows : planned_, queued_ + most);
    Run run;
    run.first = base_ + (queued_ < rows ? queued_ : layout_.row_packets() + queued_ - rows);
    while (queued_ + run.count < end && encoded(queued_ + run.count)) ++run.count;
    if (work_ && work_->storage) run.data = work_->storage.get() + std::size_t{queued_} * payload_bytes_;
    return run;
}

}  // namespace farhaul::reliable
