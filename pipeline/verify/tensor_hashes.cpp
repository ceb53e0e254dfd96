#include "pipeline/verify/tensor_hashes.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

#include "core/base/hash/crc64.hpp"
#include "core/base/tables/integers.hpp"
#include "core/base/threads/workers.hpp"
#include "core/io/file_set.hpp"
#include "core/plan/equal/digest_work.hpp"
#include "core/plan/ordered_blocks.hpp"
#include "pipeline/verify/suspects/suspect_tensors.hpp"
#include "stages/stream/stream.hpp"

namespace reshard {
namespace {

/// Rounds that fit into the staging memory beside each other.
constexpr std::uint64_t rounds_in_flight = 4;

/// A tensor to hash.
struct HashTask {
  std::size_t tensor = 0;
  std::uint64_t bytes = 0;
  std::uint64_t part_bytes = 0;
};

/// Hashes bytes that come in the order of tasks; file t is task t.
class HashSink : public ExtentSink {
 public:
  HashSink(std::vector<HashTask> const& tasks, std::vector<TensorHashes>& hashes,
           std::size_t threads)
      : tasks_(tasks), hashes_(hashes), workers_(std::min<std::size_t>(threads, 3)) {}

  void write(std::span<Extent const> extents, std::byte* staging) override {
    std::vector<Extent> ordered(extents.begin(), extents.end());
    std::ranges::sort(ordered, {}, &Extent::offset_bytes);
    for (Extent const& extent : ordered) {
      RESHARD_EXPECT(extent.file == file_ && extent.offset_bytes == at_);
      take({staging + extent.at, extent.bytes});
    }
    ++stats_.calls;
  }
  WriteStats const& stats() const override { return stats_; }
  std::string_view mode_name() const override { return "hash"; }

 private:
  void take(std::span<std::byte const> bytes) {
    HashTask const& task = tasks_[file_];
    TensorHashes& hashes = hashes_[task.tensor];
    bool const parted = task.part_bytes < task.bytes;
    workers_.run(parted ? 3 : 2, [&](std::size_t i, std::size_t) {
      if (i == 0) sha256_.add(bytes);
      if (i == 1) hashes.crc64 = crc64(bytes, hashes.crc64);
      if (i == 2) take_parts(bytes, task, hashes);
    });
    at_ += bytes.size();
    stats_.bytes += bytes.size();
    if (at_ < task.bytes) return;
    hashes.sha256 = sha256_.digest();
    sha256_ = Sha256();
    at_ = 0;
    ++file_;
  }

  void take_parts(std::span<std::byte const> bytes, HashTask const& task, TensorHashes& hashes) {
    std::uint64_t place = at_;
    while (!bytes.empty()) {
      std::uint64_t const left = task.part_bytes - place % task.part_bytes;
      std::uint64_t const now = std::min<std::uint64_t>(left, bytes.size());
      part_.add(bytes.first(now));
      bytes = bytes.subspan(now);
      place += now;
      if (now < left) continue;
      hashes.parts.push_back(part_.digest());
      part_ = Sha256();
    }
  }

  std::vector<HashTask> const& tasks_;
  std::vector<TensorHashes>& hashes_;
  Workers workers_;
  std::uint32_t file_ = 0;
  std::uint64_t at_ = 0;
  Sha256 sha256_;
  Sha256 part_;
  WriteStats stats_;
};

/// The tasks of a rank: the largest tensors are shared out first, each to the rank that has least.
std::vector<HashTask> tasks_of_rank(JobPlan const& catalogue, Comm const& comm) {
  Model const& model = *catalogue.model;
  std::vector<HashTask> all;
  for (std::size_t t = 0; t < model.tensors().size(); ++t) {
    auto const id = TensorId(t);
    auto const blobs = catalogue.source.tensors[t].blobs();
    if (!model.exists(id) || blobs.empty() || logical_volume(model, id) == 0) continue;
    SlicedTensor const sliced =
        sliced_tensor(model, id, catalogue.source.blobs[blobs.front()].dtype);
    all.push_back({t, sliced.slice_bytes * sliced.tensor.slices.size(), sliced.slice_bytes});
  }
  std::ranges::stable_sort(all, std::ranges::greater(), &HashTask::bytes);
  std::vector<std::uint64_t> load(static_cast<std::size_t>(comm.size()), 0);
  std::vector<HashTask> mine;
  for (HashTask const& task : all) {
    auto const least = std::ranges::min_element(load);
    *least += task.bytes;
    if (least - load.begin() == comm.rank()) mine.push_back(task);
  }
  return mine;
}

/// One tensor's hashes on their way between ranks: plain data, with its parts behind.
struct SentHashes {
  std::uint64_t tensor = 0;
  std::uint64_t parts = 0;
  std::uint64_t crc64 = 0;
  Sha256Digest sha256{};
};

template <class Plain>
void append(std::string& bytes, Plain const& value) {
  bytes.append(reinterpret_cast<char const*>(&value), sizeof value);
}

template <class Plain>
Plain taken(std::string_view& bytes) {
  Plain value;
  RESHARD_EXPECT(bytes.size() >= sizeof value);
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes.remove_prefix(sizeof value);
  return value;
}

void share(std::vector<HashTask> const& mine, std::vector<TensorHashes>& hashes, Comm const& comm) {
  std::string own;
  for (HashTask const& task : mine) {
    TensorHashes const& one = hashes[task.tensor];
    append(own, SentHashes{task.tensor, one.parts.size(), one.crc64, one.sha256});
    for (Sha256Digest const& part : one.parts) append(own, part);
  }
  for (std::string const& sent : comm.all_gather(own)) {
    std::string_view bytes = sent;
    while (!bytes.empty()) {
      auto const one = taken<SentHashes>(bytes);
      RESHARD_EXPECT(one.tensor < hashes.size());
      TensorHashes& into = hashes[one.tensor];
      into = {one.crc64, one.sha256, {}};
      for (std::uint64_t p = 0; p < one.parts; ++p)
        into.parts.push_back(taken<Sha256Digest>(bytes));
    }
  }
}

}  // namespace

std::vector<TensorHashes> hash_tensors(Checkpoint const& checkpoint, JobPlan const& catalogue,
                                       std::uint64_t memory_bytes, std::size_t threads,
                                       Comm const& comm) {
  TensorHashes const of_nothing{0, Sha256().digest(), {}};
  std::vector<TensorHashes> hashes(catalogue.model->tensors().size(), of_nothing);
  std::vector<HashTask> mine;
  FileSet files(checkpoint.files, FileSet::Access::read);
  together(comm, [&] {
    mine = tasks_of_rank(catalogue, comm);
    HashSink sink(mine, hashes, threads);
    StreamOptions options;
    options.memory_bytes = memory_bytes;
    options.threads = threads;
    options.views = catalogue.source.views;
    std::uint32_t task = 0;
    std::optional<OrderedBlocks> blocks;
    stream(comm, options, files, sink, [&]() -> std::optional<RoundWork> {
      if (blocks && blocks->done()) {
        blocks.reset();
        ++task;
      }
      if (task == mine.size()) return std::nullopt;
      if (!blocks) {
        blocks.emplace(*catalogue.model, catalogue.source, TensorId(mine[task].tensor));
        RESHARD_EXPECT(blocks->bytes() == mine[task].bytes);
      }
      return blocks->next(task, memory_bytes / rounds_in_flight);
    });
  });
  share(mine, hashes, comm);
  return hashes;
}

}  // namespace reshard
