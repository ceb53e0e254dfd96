#include "pipeline/publication/verify_target.hpp"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <utility>

#include "core/base/capture.hpp"
#include "core/base/files/file.hpp"
#include "core/base/threads/workers.hpp"
#include "core/formats/headers/stamped_files.hpp"
#include "core/formats/manifest/file_records.hpp"
#include "pipeline/publication/incremental/reused_proof.hpp"
#include "pipeline/publication/integrity_file.hpp"
#include "pipeline/publication/small_files.hpp"
#include "pipeline/publication/target_folders.hpp"
#include "pipeline/records/sums_file.hpp"
#include "pipeline/records/target_check.hpp"
#include "pipeline/records/target_manifest.hpp"
#include "stages/verify/scans/scan.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Enough for a thread of the scan to keep the disk busy.
constexpr std::uint64_t usual_scan_bytes = 64U << 20;

/// Leaves out bytes that are shared with the source: they are not read, and nothing is compared of
/// their tensors.
void leave_out_shared(JobPlan const& plan, DigestWork& work) {
  std::erase_if(work.regions, [&](ShareRegion const& region) {
    return plan.plan.unread[index(work.share(region.to).digest)];
  });
}

ScanOptions scan_options(TargetTask const& task, TargetRounds& rounds,
                         std::function<void(std::uint64_t)> const& watch) {
  return {.memory_bytes = std::min(usual_scan_bytes * task.threads, task.spec.run.memory_bytes),
          .threads = task.threads,
          .file_hashes = true,
          .sha256 = takes_sums(task.spec),
          .past_cache = true,
          .watch = watch,
          .scanned = rounds.scanned()};
}

ScanResult read_back(TargetTask const& task, BegunTarget& begun, TargetRounds& rounds,
                     CompletedTarget const& completed,
                     std::function<void(std::uint64_t)> const& watch) {
  std::shared_ptr<DigestWork const> work;
  std::vector<std::uint64_t> expected = completed.digests;
  together(task.comm, [&] {
    if (!completed.shares_unread) {
      work = rounds.digest_work();
      return;
    }
    DigestWork read = target_digest_work(task.plan);
    leave_out_shared(task.plan, read);
    work = std::make_shared<DigestWork const>(std::move(read));
    for (std::size_t t = 0; t < task.plan.plan.unread.size(); ++t)
      if (task.plan.plan.unread[t]) expected[t] = 0;  // as of what has no bytes
  });
  std::vector<std::uint64_t> sizes;
  for (TargetLayout const& layout : begun.layouts) sizes.push_back(layout.size_bytes);
  ScanOptions options = scan_options(task, rounds, watch);
  options.sizes = sizes;
  options.zeros = task.plan.unread.spans;
  options.without_zeros =
      completed.shares_unread && task.spec.target.sha256sums != SumsChoice::always;
  ScanResult found = scan(task.comm, paths_of(begun.layouts), *work, options, rounds.early());
  together(task.comm, [&] {
    auto const error = capture([&] {
      expect_target(task.plan, *work, found, {expected, begun.sums.files().of_files()});
    });
    if (!error) return;
    if (!task.previous.is_usable()) throw *error;
    throw Error(
        error->kind(),
        fmt::format(
            "{} If that happens again, a file of target.incremental_from has changed unseen: "
            "check it with `reshard verify {}`, and run without target.incremental_from.",
            error->sentence(), task.spec.target.incremental_from));
  });
  return found;
}

/// Without another read, where the sums of all files are known.
void add_integrity(TargetTask const& task, BegunTarget const& begun, fs::path const& staging,
                   ScanResult const& found, std::vector<FileSum>& sums,
                   std::vector<FileRecord>& small_files) {
  fs::path const folder = begun.layouts.front().path.parent_path();
  std::vector<FileRecord> written;
  if (!are_whole(found.files)) written = write_integrity(folder, staging, task.comm);
  together(task.comm, [&] {
    if (task.comm.rank() != 0) return;
    if (written.empty()) {
      std::vector<FileSum> known = sums_of(task.plan, found.files);
      known.insert(known.end(), sums.begin(), sums.end());
      written.push_back(write_integrity(folder, staging, known));
    }
    for (FileSum& sum : check_small_files(written, staging)) sums.push_back(std::move(sum));
    small_files.insert(small_files.end(), written.begin(), written.end());
  });
}

/// As the files are now, where a later job may clone from them.
std::vector<FileStamp> stamps_of(TargetTask const& task, BegunTarget const& begun) {
  bool const wanted = task.previous.records || task.plan.data_layout == DataLayout::for_clones;
  if (task.comm.rank() != 0 || !wanted) return {};
  std::vector<FileStamp> stamps(begun.layouts.size());
  overlapped(stamps.size(), [&](std::size_t f) { stamps[f] = stamp_of(begun.layouts[f].path); });
  return stamps;
}

/// Which tensors are not what they are in the previous target.
void note_changes(TargetTask const& task, Manifest const& made, VerifiedTarget& verified) {
  constexpr std::size_t most_named = 8;
  if (!task.previous.is_usable()) return;
  std::unordered_map<std::string_view, TensorDigest const*> before;
  for (TensorDigest const& one : task.previous.record.tensors) before.emplace(one.name, &one);
  for (TensorDigest const& tensor : made.tensors) {
    auto const found = before.find(tensor.name);
    if (found != before.end() && *found->second == tensor) continue;
    if (verified.tensors_changed++ < most_named) verified.changed_tensors.push_back(tensor.name);
  }
}

}  // namespace

VerifiedTarget verify_target(TargetTask const& task, ClaimedTarget const& claimed,
                             BegunTarget& begun, TargetRounds& rounds, CompletedTarget& completed,
                             std::function<void(std::uint64_t)> const& watch,
                             std::function<void()> const& compared) {
  Comm const& comm = task.comm;
  fs::path const& staging = claimed.target.folder();
  if (task.spec.run.verify == VerifyChoice::off) return {};
  bool const written = task.spec.run.verify == VerifyChoice::written;
  VerifiedTarget verified;
  ScanResult found;
  std::vector<FileSum> sums;  // of small files, on rank 0
  std::vector<FileBlockSums> blocks;
  if (written) {
    if (auto without =
            read_back_without_reused(task, begun, completed, scan_options(task, rounds, watch)))
      found = std::move(*without);
    else
      found = read_back(task, begun, rounds, completed, watch);
    blocks = block_sums(task, begun, found, utc_second_now());
    verified.oldest_verified = oldest_of(task, found, blocks);
    take_recorded_hashes(task, found);
    together(comm, [&] {
      if (comm.rank() == 0) sums = check_small_files(completed.small_files, staging);
    });
    if (begun.integrity && takes_sums(task.spec))
      add_integrity(task, begun, staging, found, sums, completed.small_files);
  }
  found.shares = {};
  rounds.forget_reading_back();
  compared();
  verified.bytes_read = found.bytes_read;
  verified.bytes_early = found.bytes_early;
  if (completed.shares_unread)
    for (FileSpan const& span : task.plan.unread.spans)
      verified.bytes_shared += span.end - span.begin;
  verified.reused = completed.reused;
  together(comm, [&] {
    std::vector<FileStamp> const stamps =
        written ? stamps_of(task, begun) : std::vector<FileStamp>();
    Manifest const made =
        target_manifest(task.spec, task.plan,
                        {completed.digests, completed.small_files, written, found.files, stamps,
                         reuse_block_bytes, blocks},
                        {task.source.format->name(), task.source.summary, claimed.source_record});
    verified.total = made.total;
    note_changes(task, made, verified);
    if (comm.rank() != 0) return;
    std::string const text = manifest_text(made);
    write_text_file(staging / manifest_name, text);
    std::vector<FileRecord> late{record_of_text(std::string(manifest_name), text)};
    completed.manifest = late.front().xxh3;
    if (takes_sums(task.spec) && are_whole(found.files)) {
      for (FileSum& sum : sums_of(task.plan, found.files)) sums.push_back(std::move(sum));
      completed.small_files.push_back(write_sums(std::move(sums), text, staging));
      late.push_back(completed.small_files.back());
    }
    if (written) check_small_files(late, staging);
  });
  return verified;
}

void seal_target(TargetTask const& task, ClaimedTarget& claimed, CompletedTarget const& completed) {
  StagedTarget& target = claimed.target;
  TargetFolders const folders(task, target.folder(), completed.small_files);
  std::vector<std::string> lines = folders.check();
  together(task.comm, [&] {
    if (task.comm.rank() != 0) return;
    if (!target.is_journaled()) note_job(task, claimed);
    target.journal().mark_complete(std::move(lines), completed.manifest);
  });
  target.seal();
  folders.sync();
  target.note_durable_names();
}

}  // namespace reshard
