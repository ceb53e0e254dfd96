#include "pipeline/target/verify_target.hpp"

#include <algorithm>
#include <optional>

#include "core/base/file.hpp"
#include "core/base/workers.hpp"
#include "core/formats/stamped_files.hpp"
#include "pipeline/target/small_files.hpp"
#include "pipeline/target/target_check.hpp"
#include "pipeline/target/target_folders.hpp"
#include "pipeline/target/target_manifest.hpp"
#include "stages/verify/scan.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

/// Enough for a thread of the scan to keep the disk busy.
constexpr std::uint64_t usual_scan_bytes = 64U << 20;

/// What is shared with the source is not read, and nothing is compared of its tensors.
void leave_out_shared(JobPlan const& plan, DigestWork& work) {
  std::erase_if(work.regions, [&](ShareRegion const& region) {
    return plan.plan.unread[index(work.share(region.to).digest)];
  });
}

ScanResult read_back(TargetTask const& task, BegunTarget& begun, CompletedTarget const& completed,
                     std::function<void(std::uint64_t)> const& watch) {
  std::optional<DigestWork> work;
  std::vector<std::uint64_t> expected = completed.digests;
  together(task.comm, [&] {
    work = target_digest_work(task.plan);
    if (!completed.shares_unread) return;
    leave_out_shared(task.plan, *work);
    for (std::size_t t = 0; t < task.plan.plan.unread.size(); ++t)
      if (task.plan.plan.unread[t]) expected[t] = 0;  // as of what has no bytes
  });
  std::vector<std::uint64_t> sizes;
  for (TargetLayout const& layout : begun.layouts) sizes.push_back(layout.size_bytes);
  ScanOptions options{
      .memory_bytes = std::min(usual_scan_bytes * task.threads, task.spec.run.memory_bytes),
      .threads = task.threads,
      .file_hashes = true,
      .sizes = sizes,
      .past_cache = true,
      .zeros = task.plan.unread.spans,
      .without_zeros = completed.shares_unread,
      .watch = watch};
  ScanResult found = scan(task.comm, paths_of(begun.layouts), *work, options);
  together(task.comm, [&] {
    expect_target(task.plan, *work, found, {expected, begun.sums.files().shares()});
  });
  return found;
}

/// As the files are now, where a later job may clone from them.
std::vector<FileStamp> stamps_of(TargetTask const& task, BegunTarget const& begun) {
  if (task.comm.rank() != 0 || task.plan.data_layout != DataLayout::for_clones) return {};
  std::vector<FileStamp> stamps(begun.layouts.size());
  overlapped(stamps.size(), [&](std::size_t f) { stamps[f] = stamp_of(begun.layouts[f].path); });
  return stamps;
}

}  // namespace

VerifiedTarget verify_target(TargetTask const& task, ClaimedTarget const& claimed,
                             BegunTarget& begun, CompletedTarget const& completed,
                             std::function<void(std::uint64_t)> const& watch) {
  Comm const& comm = task.comm;
  fs::path const& staging = claimed.target.folder();
  if (task.spec.run.verify == VerifyChoice::off) return {};
  bool const written = task.spec.run.verify == VerifyChoice::written;
  ScanResult found;
  if (written) {
    found = read_back(task, begun, completed, watch);
    together(comm, [&] {
      if (comm.rank() == 0) check_small_files(completed.small_files, staging);
    });
  }
  VerifiedTarget verified{found.bytes_read, ""};
  if (completed.shares_unread)
    for (FileSpan const& span : task.plan.unread.spans)
      verified.bytes_shared += span.end - span.begin;
  together(comm, [&] {
    std::vector<FileStamp> const stamps =
        written ? stamps_of(task, begun) : std::vector<FileStamp>();
    Manifest const made =
        target_manifest(task.spec, task.plan,
                        {completed.digests, completed.small_files, written, found.files, stamps},
                        {task.source.format->name(), task.source.summary, claimed.source_record});
    verified.total = made.total;
    if (comm.rank() == 0) write_text_file(staging / manifest_name, manifest_text(made));
  });
  return verified;
}

void seal_target(TargetTask const& task, ClaimedTarget& claimed, CompletedTarget const& completed) {
  StagedTarget& target = claimed.target;
  TargetFolders const folders(task, target.folder(), completed.small_files);
  folders.check();
  together(task.comm, [&] {
    if (task.comm.rank() != 0) return;
    if (!target.is_journaled()) note_job(task, claimed);
    target.journal().mark_complete(target.folder());
  });
  target.seal();
  folders.sync();
  target.note_durable_names();
}

}  // namespace reshard
