#include "pipeline/publication/incremental/reuse_files.hpp"

#include <algorithm>
#include <string>
#include <utility>

#include "core/base/files/file.hpp"
#include "core/base/range.hpp"
#include "core/base/text/wire.hpp"
#include "core/formats/headers/stamped_files.hpp"
#include "core/io/shared_extents.hpp"
#include "core/plan/clones.hpp"
#include "core/transport/in_turn.hpp"

namespace reshard {

static constexpr auto wire_fields(FileSpan const&) {
  return std::tuple(&FileSpan::file, &FileSpan::begin, &FileSpan::end);
}

namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t most_copied_bytes = std::uint64_t{8} << 20;

/// The bytes that all ranks have kept, and those taken before the first round, by file.
std::vector<std::vector<FileSpan>> gathered(std::vector<FileSpan> const& kept,
                                            TakenTensors const& taken, std::size_t files,
                                            Comm const& comm) {
  WireWriter out;
  out.put(kept);
  std::vector<std::vector<FileSpan>> by_file(files);
  for (std::string const& one : comm.all_gather(std::move(out).take()))
    for (FileSpan const& span : WireReader(one, "kept bytes").all<std::vector<FileSpan>>())
      by_file.at(span.file).push_back(span);
  for (FileSpan const& place : taken.places) by_file.at(place.file).push_back(place);
  for (auto& spans : by_file) spans = united(std::move(spans));
  return by_file;
}

/// One file of the target, which one of the previous target has the bytes of.
class Reuse {
 public:
  Reuse(PreviousFile const& previous, fs::path path, ReuseWay way, std::uint64_t clone_bytes)
      : previous_(previous),
        path_(std::move(path)),
        way_(way),
        clone_bytes_(clone_bytes),
        from_(open_previous(previous)) {}

  /// False when the system refuses.
  bool take_whole() const { return way_ == ReuseWay::link ? link() : clone_whole(); }

  /// Returns how many bytes were copied. `all_cloned`: whether no clone was refused.
  std::uint64_t fill(std::span<FileSpan const> kept, std::uint64_t& all_cloned) const {
    all_cloned = way_ == ReuseWay::clone ? 1 : 0;
    File to = File::open_for_writing(path_);
    std::uint64_t copied = 0;
    for (FileSpan const& span : kept) copied += fill_one(to, span, all_cloned);
    to.sync();
    to.close();
    return copied;
  }

 private:
  /// The new name goes over the file that was begun.
  bool link() const {
    fs::path unnamed = path_;
    unnamed += ".link";
    std::error_code error;
    fs::remove(unnamed, error);
    fs::create_hard_link(previous_.path, unnamed, error);
    if (error) return false;
    rename_path(unnamed, path_);
    return true;
  }

  bool clone_whole() const {
    File to = File::open_for_writing(path_);
    auto const size = static_cast<std::uint64_t>(previous_.stamp.bytes);
    bool const cloned = size == 0 || clone_range({from_, 0, to, 0, size}) == CloneAnswer::cloned;
    to.sync();
    to.close();
    return cloned;
  }

  std::uint64_t fill_one(File const& to, FileSpan const& span, std::uint64_t& all_cloned) const {
    if (way_ != ReuseWay::clone) return copy(to, span.begin, span.end);
    std::uint64_t const begin = (span.begin + clone_bytes_ - 1) / clone_bytes_ * clone_bytes_;
    std::uint64_t const end = span.end / clone_bytes_ * clone_bytes_;
    if (begin >= end) return copy(to, span.begin, span.end);
    if (clone_range({from_, begin, to, begin, end - begin}) != CloneAnswer::cloned) {
      all_cloned = 0;
      return copy(to, span.begin, span.end);
    }
    return copy(to, span.begin, begin) + copy(to, end, span.end);
  }

  std::uint64_t copy(File const& to, std::uint64_t begin, std::uint64_t end) const {
    std::vector<std::byte> buffer(std::min(end - begin, most_copied_bytes));
    for (std::uint64_t at = begin; at < end;) {
      std::span const part(buffer.data(), std::min(end - at, most_copied_bytes));
      from_.read_at(at, part);
      to.write_at(at, part);
      at += part.size();
    }
    return end - begin;
  }

  PreviousFile const& previous_;
  fs::path path_;
  ReuseWay way_;
  std::uint64_t clone_bytes_;
  File from_;
};

/// The blocks of PreviousFile::blocks in what was cloned.
std::vector<FileSpan> cloned_blocks(std::vector<std::vector<FileSpan>> const& spans,
                                    std::span<std::uint64_t const> all_cloned) {
  std::vector<FileSpan> blocks;
  for (std::size_t f = 0; f < spans.size(); ++f) {
    if (all_cloned[f] == 0) continue;
    for (FileSpan const& span : spans[f]) {
      std::uint64_t const begin =
          (span.begin + reuse_block_bytes - 1) / reuse_block_bytes * reuse_block_bytes;
      std::uint64_t const end = span.end / reuse_block_bytes * reuse_block_bytes;
      if (begin < end) blocks.push_back({span.file, begin, end});
    }
  }
  return blocks;
}

}  // namespace

File open_previous(PreviousFile const& previous) {
  File file = File::open_for_reading(previous.path, ErrorKind::io);
  if (!is_same_file(file.stamp(), previous.stamp))
    fail(ErrorKind::io,
         "{}: changed while this job ran, which takes over what is unchanged in it "
         "(target.incremental_from). Run again.",
         previous.path.string());
  return file;
}

ReusedBytes reuse_files(TargetTask const& task, BegunTarget const& begun,
                        std::vector<FileSpan> const& kept) {
  Comm const& comm = task.comm;
  std::size_t const files = begun.layouts.size();
  ReusedBytes reused;
  reused.files.resize(files, false);
  auto const spans = gathered(kept, task.previous.taken, files, comm);
  std::vector<std::uint64_t> whole(files, 0);
  std::vector<std::uint64_t> all_cloned(files, 0);
  std::uint64_t copied = 0;
  together(comm, [&] {
    for_each_in_turn(comm, files, [&](std::size_t f) {
      PreviousFile const& previous = task.previous.files[f];
      if (previous.path.empty()) return;
      auto const sums = begun.sums.files().blocks_of(static_cast<std::uint32_t>(f));
      bool const same = std::ranges::equal(sums, previous.blocks);
      if (!same && spans[f].empty()) return;
      Reuse const reuse(previous, begun.layouts[f].path, task.previous.way,
                        task.previous.clone_bytes);
      if (same && reuse.take_whole())
        whole[f] = 1;
      else
        copied += reuse.fill(spans[f], all_cloned[f]);
    });
  });
  comm.xor_all(whole);
  comm.xor_all(all_cloned);
  for (std::size_t f = 0; f < files; ++f) {
    for (FileSpan const& span : spans[f]) reused.kept_bytes += span.end - span.begin;
    if (whole[f] == 0) continue;
    reused.files[f] = true;
    ++reused.whole_files;
    reused.whole_bytes += begun.layouts[f].size_bytes;
  }
  reused.copied_bytes = static_cast<std::uint64_t>(comm.sum(static_cast<std::int64_t>(copied)));
  reused.blocks = cloned_blocks(spans, all_cloned);
  return reused;
}

}  // namespace reshard
