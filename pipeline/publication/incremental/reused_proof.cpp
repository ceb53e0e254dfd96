#include "pipeline/publication/incremental/reused_proof.hpp"

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <unordered_map>
#include <utility>

#include "core/base/capture.hpp"
#include "core/base/hash/crc64.hpp"
#include "core/plan/clones.hpp"
#include "core/plan/equal/digest_work.hpp"
#include "pipeline/records/recorded_digests.hpp"
#include "pipeline/records/sums_file.hpp"
#include "pipeline/records/target_check.hpp"

namespace reshard {
namespace {

/// The recorded digest of everything in the plan that has one; nothing when one is not recorded
/// alike.
std::optional<std::vector<std::uint64_t>> recorded_digests(JobPlan const& plan,
                                                           Manifest const& record) {
  RecordedDigests const recorded(record);
  std::size_t const tensors = plan.model->tensors().size();
  std::vector<std::uint64_t> digests(tensors + plan.opaque.size(), 0);
  for (std::size_t t = 0; t < tensors; ++t) {
    if (!is_in_target(plan, t)) continue;
    auto const digest = recorded.of_target(plan, t);
    if (!digest) return std::nullopt;
    digests[t] = *digest;
  }
  for (std::size_t i = 0; i < plan.opaque.size(); ++i) {
    OpaqueCopy const& copy = plan.opaque[i];
    auto const digest =
        recorded.find(fmt::format("{}:{}", plan.target.files[copy.dst_file], copy.dst_offset_bytes),
                      "", {static_cast<Index>(copy.bytes)});
    if (!digest) return std::nullopt;
    digests[tensors + i] = *digest;
  }
  return digests;
}

/// Whether what is read of the target, and the same of the previous one, is less than the target.
bool saves_reading(TargetTask const& task, ReusedBytes const& reused) {
  std::uint64_t all = 0;
  for (std::size_t f = 0; f < task.plan.files.size(); ++f) {
    all += task.plan.files[f].size_bytes;
    if (!reused.files[f] && task.previous.files[f].path.empty()) return false;
  }
  std::uint64_t unread = reused.whole_bytes;
  for (FileSpan const& span : reused.blocks) unread += span.end - span.begin;
  return 2 * unread > all;
}

/// Leaves bytes of some places out of the work on files.
class UnreadPlaces {
 public:
  /// By place.
  explicit UnreadPlaces(std::span<FileSpan const> spans) : spans_(spans) {}

  void leave_out(DigestWork& work) {
    for (ShareRegion const& region : work.regions) {
      std::span const dims(work.dims.data() + region.first_dim, region.dim_count);
      std::uint64_t end = region.src_offset_bytes + region.run_bytes;
      for (ByteDim const& dim : dims)
        end += (dim.count - 1) * static_cast<std::uint64_t>(dim.from_stride);
      auto const first = first_after(region.src_file, region.src_offset_bytes);
      if (first == spans_.end() || first->file != region.src_file || first->begin >= end)
        left_.push_back(region);  // there is none of them in it
      else if (region.dim_count > 0 && region.run_bytes < least_apart_bytes)
        add_unless_inside(region, *first, end);
      else
        add_runs(region, dims);
    }
    work.regions = std::move(left_);
  }

 private:
  std::span<FileSpan const>::iterator first_after(std::uint32_t file, std::uint64_t offset) const {
    return std::ranges::partition_point(spans_, [&](FileSpan const& span) {
      return std::tuple(span.file, span.end) <= std::tuple(file, offset);
    });
  }
  void add_unless_inside(ShareRegion const& region, FileSpan const& span, std::uint64_t end) {
    if (span.begin > region.src_offset_bytes || span.end < end) left_.push_back(region);
  }
  void add_runs(ShareRegion const& region, std::span<ByteDim const> dims) {
    std::vector<std::uint64_t> at(dims.size(), 0);
    for (;;) {
      ShareRegion run = region;
      run.dim_count = 0;
      for (std::size_t d = 0; d < dims.size(); ++d) {
        run.src_offset_bytes += at[d] * static_cast<std::uint64_t>(dims[d].from_stride);
        run.dst_offset_bytes += at[d] * static_cast<std::uint64_t>(dims[d].to_stride);
      }
      add_rest(run);
      std::size_t d = dims.size();
      while (d > 0 && ++at[d - 1] == dims[d - 1].count) at[--d] = 0;
      if (d == 0) return;
    }
  }
  /// The parts of a run that are in none of the places.
  void add_rest(ShareRegion run) {
    std::uint64_t const end = run.src_offset_bytes + run.run_bytes;
    auto const add_until = [&](std::uint64_t to) {
      ShareRegion part = run;
      part.run_bytes = to - run.src_offset_bytes;
      if (to > run.src_offset_bytes) left_.push_back(part);
    };
    for (auto span = first_after(run.src_file, run.src_offset_bytes);
         span != spans_.end() && span->file == run.src_file && span->begin < end; ++span) {
      add_until(std::max(span->begin, run.src_offset_bytes));
      std::uint64_t const next = std::min(span->end, end);
      run.dst_offset_bytes += next - run.src_offset_bytes;
      run.src_offset_bytes = next;
    }
    add_until(end);
  }

  std::span<FileSpan const> spans_;
  std::vector<ShareRegion> left_;
};

/// Expected sums of each file: nothing of those that are not read, and of others all but the blocks
/// that count as zeros.
std::vector<std::uint64_t> sums_without(ReusedBytes const& reused, TargetTask const& task,
                                        BegunTarget const& begun) {
  FileDigests const& files = begun.sums.files();
  std::vector<std::uint64_t> sums = files.of_files();
  for (std::uint32_t f = 0; f < sums.size(); ++f)
    if (reused.files[f]) sums[f] = 0;
  for (FileSpan const& span : reused.blocks) {
    std::uint64_t const size = task.plan.files[span.file].size_bytes;
    for (std::uint64_t at = span.begin; at < span.end; at += reuse_block_bytes)
      sums[span.file] ^= crc64_shifted(files.blocks_of(span.file)[at / reuse_block_bytes],
                                       size - at - reuse_block_bytes);
  }
  return sums;
}

/// Bytes of each tensor that work reads outside of files that are left out, by DigestId.
std::vector<std::uint64_t> bytes_by_tensor(DigestWork const& work,
                                           std::vector<bool> const& without_files) {
  std::vector<std::uint64_t> bytes(work.tensor_bytes.size(), 0);
  for (ShareRegion const& region : work.regions)
    if (!without_files[region.src_file])
      bytes[index(work.share(region.to).digest)] +=
          bytes_of(region, std::span(work.dims.data() + region.first_dim, region.dim_count));
  return bytes;
}

/// Tensors of which `all` of the target is read: what is expected of them is what the source has.
std::vector<bool> read_whole(DigestWork const& all, DigestWork const& read,
                             std::vector<bool> const& without_files) {
  auto const of_all = bytes_by_tensor(all, std::vector<bool>(without_files.size(), false));
  auto const of_read = bytes_by_tensor(read, without_files);
  std::vector<bool> whole;
  for (std::size_t t = 0; t < of_all.size(); ++t) whole.push_back(of_all[t] == of_read[t]);
  return whole;
}

std::vector<std::filesystem::path> paths_of(std::span<PreviousFile const> files) {
  std::vector<std::filesystem::path> paths;
  for (PreviousFile const& file : files) paths.push_back(file.path);
  return paths;
}

/// The work on the places of the previous target that an expectation needs: files are not hashed.
ScanResult scan_previous(TargetTask const& task, DigestWork work, std::vector<bool> const& whole,
                         std::vector<bool> const& without_files, ScanOptions options) {
  std::erase_if(work.regions, [&](ShareRegion const& region) {
    return without_files[region.src_file] || whole[index(work.share(region.to).digest)];
  });
  options.file_hashes = false;
  options.sha256 = false;
  options.zeros = {};
  options.without_zeros = false;
  options.without_files.clear();
  return scan(task.comm, paths_of(task.previous.files), work, options);
}

}  // namespace

std::optional<ScanResult> read_back_without_reused(TargetTask const& task, BegunTarget const& begun,
                                                   CompletedTarget const& completed,
                                                   ScanOptions options) {
  ReusedBytes const& reused = completed.reused;
  if (task.spec.target.sha256sums == SumsChoice::always) return std::nullopt;  // of all bytes
  if (reused.files.empty() || !saves_reading(task, reused)) return std::nullopt;
  std::optional<std::vector<std::uint64_t>> expected;
  DigestWork work;
  std::vector<bool> whole;
  together(task.comm, [&] {
    expected = recorded_digests(task.plan, task.previous.record);
    work = target_digest_work(task.plan);
    DigestWork const all = work;
    UnreadPlaces(reused.blocks).leave_out(work);
    whole = read_whole(all, work, reused.files);
  });
  if (!expected) return std::nullopt;
  for (std::size_t t = 0; t < expected->size(); ++t)
    (*expected)[t] = whole[t] ? completed.digests[t] : (*expected)[t] ^ completed.digests[t];
  options.without_files = reused.files;
  options.zeros = reused.blocks;
  options.without_zeros = true;
  ScanResult found = scan(task.comm, paths_of(begun.layouts), work, options);
  ScanResult const before = scan_previous(task, work, whole, reused.files, options);
  ScanResult both = found;
  for (std::size_t s = 0; s < both.shares.size(); ++s) both.shares[s] ^= before.shares[s];
  std::vector<std::uint64_t> const sums = sums_without(reused, task, begun);
  if (capture([&] { expect_target(task.plan, work, both, {*expected, sums}); }))
    return std::nullopt;
  found.bytes_read += before.bytes_read;
  for (std::size_t f = 0; f < found.files.size(); ++f)
    if (reused.files[f]) found.files[f].size_bytes = task.plan.files[f].size_bytes;  // not read
  return found;
}

std::vector<FileBlockSums> block_sums(TargetTask const& task, BegunTarget const& begun,
                                      ScanResult const& found, std::string_view now) {
  std::vector<FileBlockSums> blocks;
  if (!task.previous.records) return blocks;
  std::unordered_map<std::string_view, FileBlockSums const*> recorded;
  for (FileBlockSums const& one : task.previous.record.blocks) recorded.emplace(one.path, &one);
  for (std::size_t f = 0; f < found.files.size(); ++f) {
    auto const sums = begun.sums.files().blocks_of(static_cast<std::uint32_t>(f));
    blocks.push_back({"", std::string(now), {sums.begin(), sums.end()}, task.previous.layouts[f]});
    std::uint64_t const size = task.plan.files[f].size_bytes;
    if (found.files[f].read_bytes == size) continue;
    auto const before = recorded.find(task.plan.files[f].path.generic_string());
    if (before != recorded.end()) blocks.back().verified = before->second->verified;
  }
  return blocks;
}

std::string oldest_of(TargetTask const& task, ScanResult const& found,
                      std::vector<FileBlockSums> const& blocks) {
  std::string oldest;
  for (std::size_t f = 0; f < blocks.size(); ++f) {
    if (found.files[f].read_bytes == task.plan.files[f].size_bytes) continue;
    if (oldest.empty() || blocks[f].verified < oldest) oldest = blocks[f].verified;
  }
  return oldest;
}

void take_recorded_hashes(TargetTask const& task, ScanResult& found) {
  auto const by_path = [](auto const& records) {
    std::unordered_map<std::string_view, decltype(records.data())> map;
    for (auto const& one : records) map.emplace(one.path, &one);
    return map;
  };
  auto const recorded = by_path(task.previous.record.files);
  auto const sums = by_path(task.previous.sums);
  for (std::size_t f = 0; f < found.files.size(); ++f) {
    TargetFile const& file = task.plan.files[f];
    std::string const path = file.path.generic_string();
    auto const before = recorded.find(path);
    auto const sum = sums.find(path);
    if (found.files[f].read_bytes > 0 || before == recorded.end()) continue;
    if (takes_sums(task.spec) && sum == sums.end()) continue;
    found.files[f] = {.size_bytes = file.size_bytes,
                      .xxh3 = before->second->xxh3,
                      .crc64 = 0,
                      .read_bytes = file.size_bytes};
    if (sum != sums.end()) found.files[f].sha256 = sha256_of_hex(sum->second->sha256);
  }
}

std::string utc_second_now() {
  std::time_t const now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  char text[32];
  return {text, std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts)};
}

}  // namespace reshard
