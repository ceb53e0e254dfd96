#include "pipeline/publication/incremental/previous_target.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include <sys/stat.h>

#include "core/base/capture.hpp"
#include "core/base/files/file.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/hash/xxh3.hpp"
#include "core/base/text/wire.hpp"
#include "core/base/threads/workers.hpp"
#include "core/formats/headers/stamped_files.hpp"
#include "pipeline/records/record_sums.hpp"
#include "pipeline/records/recorded_digests.hpp"
#include "stages/write/target_files.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view wire_name = "stamps of the previous target";

/// A stamp of each of these files as it is now; zeros for one that is not there. In one look.
std::vector<FileStamp> stamps_now(fs::path const& folder, std::vector<fs::path> const& files) {
  std::string const packed = seen("previous files", folder, [&] {
    std::vector<FileStamp> stamps(files.size());
    overlapped(files.size(),
               [&](std::size_t f) { (void)capture([&] { stamps[f] = stamp_of(files[f]); }); });
    WireWriter out;
    out.put(stamps);
    return std::move(out).take();
  });
  return WireReader(packed, wire_name).all<std::vector<FileStamp>>();
}

/// The device of a folder, or of the nearest one above it that is there.
std::string device_of(fs::path path) {
  return seen("device", path, [&] {
    std::error_code ignored;
    path = fs::absolute(path, ignored);
    while (!fs::exists(path, ignored) && path.has_relative_path()) path = path.parent_path();
    struct stat status {};
    return std::to_string(::stat(path.c_str(), &status) == 0 ? status.st_dev : 0);
  });
}

template <class Record>
std::unordered_map<std::string_view, Record const*> by_path(std::vector<Record> const& records) {
  std::unordered_map<std::string_view, Record const*> found;
  for (Record const& record : records) found.emplace(record.path, &record);
  return found;
}

std::size_t block_count(std::uint64_t size_bytes) {
  return size_bytes == 0 ? 1 : (size_bytes + reuse_block_bytes - 1) / reuse_block_bytes;
}

/// Whether a file has around its tensors what one of the plan will have, whatever their values are:
/// bytes that depend on values are not compared.
bool has_frame(File const& file, JobPlan const& plan, TargetFile const& planned) {
  auto const frame = [&](bool ones) {
    std::vector<std::uint32_t> const crc32(planned.frame->records().size(), ones ? UINT32_MAX : 0);
    std::vector<std::uint64_t> const digests(plan.plan.tensor_bytes.size(), ones ? UINT64_MAX : 0);
    return frame_of({planned.path, planned.size_bytes, planned.frame}, crc32, digests);
  };
  auto const zeros = frame(false);
  auto const ones = frame(true);
  for (std::size_t s = 0; s < zeros.size(); ++s) {
    std::string const& one = zeros[s].bytes;
    std::string const& other = ones[s].bytes;
    std::string found(one.size(), '\0');
    file.read_at(zeros[s].offset_bytes, std::as_writable_bytes(std::span(found)));
    for (std::size_t b = 0; b < one.size(); ++b)
      if (one[b] == other[b] && one[b] != found[b]) return false;
  }
  return true;
}

/// For each of these files '0', or '1' when it cannot be a complete file of the target: it has
/// another frame. In one look.
std::string other_frames(fs::path const& folder, JobPlan const& plan,
                         std::vector<PreviousFile> const& files) {
  return seen("frames", folder, [&] {
    SightScope const own(nullptr);
    std::string others(files.size(), '0');
    for (std::size_t f = 0; f < files.size(); ++f) {
      if (files[f].path.empty()) continue;
      bool same = false;
      (void)capture(
          [&] { same = has_frame(File::open_for_reading(files[f].path), plan, plan.files[f]); });
      if (!same) others[f] = '1';
    }
    return others;
  });
}

/// How many files of a previous target did not count, and why.
struct Refused {
  std::size_t other_form = 0;  ///< no file has its name and size
  std::size_t unrecorded = 0;
  std::size_t other_frame = 0;  ///< there is something else around its tensors
  std::string changed;          ///< the first of those that changed
  std::size_t changes = 0;
};

std::string reason_of(Refused const& refused) {
  if (refused.changes > 0)
    return fmt::format(
        "{} of its files have changed since they were checked, {} first: they may be a copy, or "
        "were modified",
        refused.changes, refused.changed);
  if (refused.unrecorded > 0)
    return fmt::format("its {} does not list the blocks of its files", manifest_name);
  if (refused.other_frame > 0)
    return "its files differ around their tensors, for example in the iteration, and only "
           "complete files can become links";
  return "none of its files has the name and size of one of this target: it has another "
         "format, layout or dtypes";
}

/// Adds the files that count.
void take_files(fs::path const& folder, JobPlan const& plan, bool exact, PreviousTarget& previous) {
  auto const stamps = by_path(previous.record.stamps);
  auto const blocks = by_path(previous.record.blocks);
  std::vector<fs::path> paths;
  for (TargetFile const& file : plan.files) paths.push_back(folder / file.path);
  std::vector<FileStamp> const now = stamps_now(folder, paths);
  Refused refused;
  std::vector<PreviousFile> files(plan.files.size());
  for (std::size_t f = 0; f < plan.files.size(); ++f) {
    TargetFile const& file = plan.files[f];
    std::string const path = file.path.generic_string();
    auto const stamp = stamps.find(path);
    auto const sums = blocks.find(path);
    if (static_cast<std::uint64_t>(now[f].bytes) != file.size_bytes || now[f].inode == 0) {
      ++refused.other_form;
    } else if (stamp == stamps.end() || sums == blocks.end() ||
               sums->second->crc64.size() != block_count(file.size_bytes)) {
      ++refused.unrecorded;
    } else if (!is_same_file(now[f], stamp->second->stamp) ||
               (exact && now[f].ctime_ns != stamp->second->stamp.ctime_ns)) {
      if (refused.changes++ == 0) refused.changed = path;
    } else {
      files[f] = {paths[f], now[f], sums->second->crc64};
      ++previous.usable_files;
      previous.usable_bytes += file.size_bytes;
    }
  }
  if (previous.way == ReuseWay::link) {
    std::string const others = other_frames(folder, plan, files);
    for (std::size_t f = 0; f < files.size(); ++f) {
      if (others[f] == '0') continue;
      files[f] = {};
      ++refused.other_frame;
      --previous.usable_files;
      previous.usable_bytes -= plan.files[f].size_bytes;
    }
  }
  if (previous.usable_files > 0)
    previous.files = std::move(files);
  else
    previous.why_not = reason_of(refused);
}

/// Why no file of the folder need be looked at; "" when some may count.
std::string reason_against(fs::path const& folder, JobSpec const& spec, PreviousTarget& previous) {
  std::optional<std::string> text;
  std::optional<Manifest> record;
  if (auto const error = capture([&] {
        text = find_manifest_text(folder);
        if (text) record = parse_manifest(*text, (folder / manifest_name).string());
      }))
    return fmt::format("its {} cannot be used: {}", manifest_name, error->sentence());
  if (!record) return fmt::format("no {} is there", manifest_name);
  if (record->block_bytes != reuse_block_bytes)
    return fmt::format(
        "its {} has no sums of blocks of {}: it was made without target.incremental_from",
        manifest_name, human_bytes(reuse_block_bytes));
  if (previous.way == ReuseWay::link && device_of(folder) != device_of(spec.target.path))
    return "it is on another file system, where no file can be linked to";
  previous.record = std::move(*record);
  SumsOfRecord beside = record_sums(folder, *text);
  previous.sums = std::move(beside.sums);
  previous.contradicted = beside.contradicts;
  return "";
}

}  // namespace

std::string PreviousTarget::fingerprint() const {
  if (!is_usable()) return records ? "records" : "";
  Xxh3 hash;
  auto const add = [&hash](std::uint64_t word) { hash.add(std::as_bytes(std::span(&word, 1))); };
  add(static_cast<std::uint64_t>(way));
  for (PreviousFile const& file : files) {
    add(file.stamp.inode);
    add(static_cast<std::uint64_t>(file.stamp.mtime_ns));
    add(file.blocks.size());
    hash.add(std::as_bytes(std::span(file.blocks)));
  }
  for (FileSpan const& place : taken.places) {
    add(place.file);
    add(place.begin);
    add(place.end);
  }
  hash.add(std::as_bytes(std::span(taken.digests)));
  return hex64(hash.value());
}

PreviousTarget find_previous(JobSpec const& spec, JobPlan const& plan, std::uint64_t clone_bytes) {
  PreviousTarget previous;
  std::string const& path = spec.target.incremental_from;
  if (path.empty()) return previous;
  if (spec.run.verify != VerifyChoice::written) {
    previous.why_not =
        "only a target that is read back (run.verify = \"written\") takes over files";
    return previous;
  }
  if (hdf5::TargetIo const io = spec.target.options.hdf5.io;
      io == hdf5::TargetIo::independent || io == hdf5::TargetIo::collective) {
    previous.why_not = "libhdf5 writes the files (target.io)";
    return previous;
  }
  if (!plan.unread.spans.empty()) {
    previous.why_not = "unchanged bytes are cloned from the source and not read";
    return previous;
  }
  previous.records = true;
  previous.layouts = file_layouts(plan);
  if (path == no_previous) return previous;
  previous.clone_bytes = clone_bytes;
  if (clone_bytes > 0) previous.way = ReuseWay::clone;
  if (clone_bytes == 0 && spec.target.incremental_links) previous.way = ReuseWay::link;
  if (previous.way == ReuseWay::none)
    previous.why_not =
        "the file system of target.path cannot share extents, and target.incremental_links is not set";
  else
    previous.why_not = reason_against(path, spec, previous);
  if (previous.why_not.empty()) take_files(path, plan, previous.way == ReuseWay::clone, previous);
  return previous;
}

void leave_source_unlinked(PreviousTarget& previous, JobPlan const& plan,
                           std::span<FileStamp const> source) {
  if (previous.way != ReuseWay::link || !previous.is_usable()) return;
  std::set<std::pair<std::uint64_t, std::uint64_t>> inodes;
  for (FileStamp const& stamp : source) inodes.emplace(stamp.device, stamp.inode);
  for (std::size_t f = 0; f < previous.files.size(); ++f) {
    FileStamp const& stamp = previous.files[f].stamp;
    if (previous.files[f].path.empty() || !inodes.contains({stamp.device, stamp.inode})) continue;
    previous.files[f] = {};
    --previous.usable_files;
    previous.usable_bytes -= plan.files[f].size_bytes;
  }
  if (previous.is_usable()) return;
  previous.files.clear();
  previous.why_not = "its files are those of the source, and a link would change them";
}

void take_recorded(PreviousTarget& previous, JobPlan const& plan,
                   std::span<std::optional<std::uint64_t> const> fresh) {
  if (previous.contradicted) return;
  RecordedDigests const recorded(previous.record);
  auto const blocks = by_path(previous.record.blocks);
  std::vector<std::optional<std::uint64_t>> same(plan.model->tensors().size());
  for (std::size_t t = 0; t < same.size(); ++t)
    if (fresh[t] && is_in_target(plan, t) && recorded.of_target(plan, t) == fresh[t])
      same[t] = fresh[t];
  std::vector<bool> usable(previous.files.size(), false);
  for (std::size_t f = 0; f < usable.size(); ++f) {
    std::string const path = plan.files[f].path.generic_string();
    auto const sums = blocks.find(path);
    usable[f] = !previous.files[f].path.empty() && sums != blocks.end() &&
                sums->second->layout == previous.layouts[f];
  }
  previous.taken = choose_taken(plan, same, usable);
}

}  // namespace reshard
