#include "pipeline/journal/job_identity.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <set>
#include <type_traits>
#include <utility>

#include "core/base/capture.hpp"
#include "core/base/files/listed_folders.hpp"
#include "core/base/files/paths.hpp"
#include "core/base/files/sight.hpp"
#include "core/base/files/tree.hpp"
#include "core/base/hash/xxh3.hpp"
#include "core/base/threads/workers.hpp"
#include "core/formats/headers/stamped_files.hpp"
#include "core/formats/manifest/file_records.hpp"
#include "core/formats/manifest/manifest.hpp"
#include "pipeline/version.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

using ReadFiles = std::map<fs::path, FileStamp>;

class Digest {
 public:
  template <class Values>
  void add_all(Values const& values) {
    using Value = std::remove_cvref_t<decltype(values[0])>;
    static_assert(std::has_unique_object_representations_v<Value>, "padding has no value");
    add(values.size());
    hash_.add(std::as_bytes(std::span(values)));
  }
  void add(CellTable const& cells) {
    add(cells.size());
    for (std::size_t c = 0; c < cells.size(); ++c)
      hash_.add(std::as_bytes(std::span(&cells.record(c), 1)));
    add_all(cells.shapes());
  }
  void add(std::uint64_t value) { hash_.add(std::as_bytes(std::span(&value, 1))); }
  void add(std::string_view text) {
    add(text.size());
    hash_.add(std::as_bytes(std::span(text)));
  }
  /// Without the device's number: the next run may be on another node.
  void add(FileStamp const& stamp) {
    add(static_cast<std::uint64_t>(stamp.bytes));
    add(static_cast<std::uint64_t>(stamp.mtime_ns));
    add(static_cast<std::uint64_t>(stamp.ctime_ns));
    add(stamp.inode);
  }
  std::string text() const { return hex64(hash_.value()); }

 private:
  Xxh3 hash_;
};

/// However it was spelt.
std::string resolved(std::string const& path) {
  return seen("resolved", path, [&] { return path.empty() ? path : resolved_path(path).string(); });
}

/// The job with its paths resolved, without what decides about no byte.
std::string job_text(JobSpec spec) {
  VerifyChoice const verify = spec.run.verify;  // decides which sums are taken
  spec.run = {};
  spec.run.verify = verify;
  for (std::string* const path : {&spec.source.path, &spec.source.config, &spec.source.adapter,
                                  &spec.target.path, &spec.target.options.huggingface.reference,
                                  &spec.target.changes.rows_from, &spec.target.changes.mtp_from})
    *path = resolved(*path);
  for (std::string& path : spec.source.average) path = resolved(path);
  if (spec.target.incremental_from != no_previous)
    spec.target.incremental_from = resolved(spec.target.incremental_from);
  return print_spec(spec);
}

std::string text_digest(std::string_view text) {
  Digest digest;
  digest.add(text);
  return digest.text();
}

/// The file at a place, or those in the folder there; none where nothing is.
std::vector<fs::path> files_at(fs::path const& place, std::optional<fs::file_type> listed) {
  if (listed == fs::file_type::regular) return {place};
  std::error_code problem;
  std::vector<TreeEntry> entries = known_listing_of(place, problem);
  if (problem) entries = {{place, fs::file_type::symlink}};
  std::vector<fs::path> files;
  for (TreeEntry const& entry : entries)
    if (entry.type == fs::file_type::regular ||
        (entry.type == fs::file_type::symlink && fs::is_regular_file(entry.path, problem)))
      files.push_back(entry.path);
  return files;
}

/// The files beside the weights, and those of other folders that the job names: they describe the
/// model.
std::vector<fs::path> describing_files(JobSpec const& spec, Checkpoint const& source,
                                       JobPlan const& plan) {
  // Texts rather than fs::path, which takes some hundred bytes more: there may be a folder for each
  // file.
  std::set<std::string> places{spec.source.config, spec.target.options.huggingface.reference,
                               spec.model.map};
  if (plan.reference) {
    for (std::string const& name : plan.reference->sidecars)
      places.insert((plan.reference->path / name).string());
    for (std::string_view const name : {huggingface::config_name, huggingface::index_name})
      places.insert((plan.reference->path / name).string());
  }
  if (!sees_file(spec.source.path))  // beside a single file there may be anything
    for (fs::path const& file : source.files) places.insert(file.parent_path().string());
  std::vector<std::string> const each(places.begin(), places.end());
  std::vector<std::string_view> weights;
  for (std::size_t f = 0; f < source.files.size(); ++f) weights.push_back(source.files.text(f));
  std::ranges::sort(weights);
  std::vector<std::optional<fs::file_type>> listed;
  for (std::string const& place : each) listed.push_back(listed_type(place));
  std::vector<std::vector<fs::path>> found(each.size());
  overlapped(each.size(), [&](std::size_t i) {
    found[i] = files_at(each[i], listed[i]);
    std::erase_if(found[i], [&](fs::path const& file) {
      return std::ranges::binary_search(weights, std::string_view(file.native()));
    });
  });
  std::set<fs::path> files;
  for (std::vector<fs::path> const& some : found) files.insert(some.begin(), some.end());
  return {files.begin(), files.end()};
}

/// A file that may not be read describes nothing.
std::vector<std::optional<FileStamp>> stamps_of(std::vector<fs::path> const& files,
                                                ReadFiles const& read) {
  std::vector<std::optional<FileStamp>> stamps(files.size());
  overlapped(files.size(), [&](std::size_t i) {
    if (auto const known = read.find(files[i]); known != read.end())
      stamps[i] = known->second;
    else
      capture([&] { stamps[i] = stamp_of(files[i]); });
  });
  return stamps;
}

/// In one look: there may be a folder for each file.
std::string source_digest(JobSpec const& spec, Checkpoint const& source, JobPlan const& plan,
                          ReadFiles const& read) {
  return seen("source digest", spec.source.path, [&] {
    Digest digest;
    auto const describing = describing_files(spec, source, plan);
    FilePaths files = source.files;
    files.add(describing);
    std::vector<std::string> const places = resolved_paths(files);
    std::size_t const weights = source.files.size();
    for (std::size_t f = 0; f < weights; ++f) {
      digest.add(places[f]);
      digest.add(source.stamps.taken[f]);
    }
    auto const stamps = stamps_of(describing, read);
    for (std::size_t i = 0; i < describing.size(); ++i) {
      digest.add(places[weights + i]);
      stamps[i] ? digest.add(*stamps[i]) : digest.add(std::uint64_t{0});
    }
    return digest.text();
  });
}

void add_place(Digest& digest, StoredPlace const& place) {
  digest.add(place.file);
  digest.add(place.offset_bytes);
  digest.add(static_cast<std::uint64_t>(place.dtype));
  digest.add_all(place.shape);
}

/// All that decides about the values it gives.
void add_view(Digest& digest, SourceView const& view) {
  auto const& [codes, integer_bits, block_rows, block_columns, second, order, zero_offset,
               divisor] = view.scheme;
  digest.add(view.name);
  for (auto const word :
       {static_cast<Index>(view.kind), static_cast<Index>(view.dtype),
        static_cast<Index>(view.constant), static_cast<Index>(codes),
        static_cast<Index>(integer_bits), block_rows, block_columns, static_cast<Index>(second),
        static_cast<Index>(order), static_cast<Index>(zero_offset), static_cast<Index>(divisor)})
    digest.add(static_cast<std::uint64_t>(word));
  digest.add_all(view.shape);
  add_place(digest, view.stored);
  for (auto const* const place :
       {&view.scale, &view.second, &view.zero_points, &view.groups, &view.factors}) {
    digest.add(std::uint64_t{place->has_value()});
    if (*place) add_place(digest, **place);
  }
}

/// Digest of merged tensors: tables that several views share are added once.
class MergedDigest {
 public:
  explicit MergedDigest(Digest& digest) : digest_(digest) {}

  void add(MergedWeight const& weight) {
    digest_.add(weight.parts.size());
    for (MergedPart const& part : weight.parts) {
      for (Index const number : {part.offset, part.out, part.in, part.pair}) add_number(number);
      digest_.add_all(part.dims);
      if (known_.insert(part.pairs.get()).second) digest_.add_all(*part.pairs);
    }
    if (!known_.insert(weight.pairs.get()).second) return;
    for (LowRankPair const& pair : *weight.pairs) {
      digest_.add(pair.name);
      add_number(pair.rank);
      digest_.add(std::uint64_t{std::bit_cast<std::uint32_t>(pair.scale)});
      for (Factor const* factor : {&pair.a, &pair.b}) add_factor(*factor);
    }
  }

 private:
  void add_number(Index number) { digest_.add(static_cast<std::uint64_t>(number)); }
  void add_factor(Factor const& factor) {
    add_number(factor.rows);
    for (FactorPart const& part : factor.parts) {
      digest_.add(part.file);
      digest_.add(part.offset_bytes);
      digest_.add(static_cast<std::uint64_t>(part.dtype));
      add_number(part.row);
      add_number(part.rank);
      digest_.add_all(part.dims);
    }
  }

  Digest& digest_;
  std::set<void const*> known_;
};

void add_blobs(Digest& digest, BlobTable const& blobs) {
  digest.add(blobs.size());
  for (Blob const& blob : blobs) {
    digest.add(blob.file);
    digest.add(blob.offset_bytes);
    digest.add(static_cast<std::uint64_t>(blob.dtype));
    digest.add(blob.name);
  }
}

std::string plan_digest(JobPlan const& plan) {
  Digest digest;
  digest.add(plan.map_name);
  for (TargetFile const& file : plan.files) {
    digest.add(file.path.string());
    digest.add(file.size_bytes);
    digest.add(file.frame->header());
    for (FileSegment const& segment : file.frame->skeleton()) {
      digest.add(segment.offset_bytes);
      digest.add(segment.bytes.size());
    }
  }
  MergedDigest merged(digest);
  for (SourceView const& view : plan.source.views) {
    add_view(digest, view);
    if (view.merged) merged.add(*view.merged);
  }
  add_blobs(digest, plan.source.blobs);
  add_blobs(digest, plan.target.blobs);
  digest.add_all(plan.listing.adds);
  digest.add_all(plan.target_adds);
  digest.add(plan.plan.cells);
  digest.add_all(plan.plan.shape_regions);
  digest.add_all(plan.plan.shape_digests);
  digest.add_all(plan.plan.places.words());
  digest.add_all(plan.plan.places.wide());
  digest.add_all(plan.plan.dims);
  digest.add_all(plan.plan.tensor_bytes);
  for (std::size_t t = 0; t < plan.plan.unread.size(); ++t)
    digest.add(plan.plan.unread[t] ? plan.recorded[t] : 0);
  return digest.text();
}

struct Part {
  std::string_view name;
  std::string JobIdentity::*digest;
  std::string_view changed;
};
constexpr std::array<Part, 5> parts = {
    Part{"program", &JobIdentity::program, "it was written by another build of reshard"},
    Part{"job", &JobIdentity::job, "the job has changed"},
    Part{"source", &JobIdentity::source, "the source has changed"},
    Part{"plan", &JobIdentity::plan,
         "the plan has changed, for example by another run.memory, transport or io"},
    Part{"previous", &JobIdentity::previous,
         "what can be taken over from target.incremental_from has "
         "changed"}};

}  // namespace

std::string const& program_digest() {
  static std::string const digest =
      version_number() + "-" + hex64(record_of("/proc/self/exe", "/proc/self").xxh3);
  return digest;
}

JobIdentity identity_of(JobSpec const& spec, Checkpoint const& source, JobPlan const& plan,
                        ReadFiles const& read) {
  std::string const job = job_text(spec);
  return {.program = program_digest(),
          .job = text_digest(job),
          .source = source_digest(spec, source, plan, read),
          .plan = plan_digest(plan),
          .job_text = job};
}

std::string identity_text(JobIdentity const& identity) {
  std::string text;
  for (Part const& part : parts) text += fmt::format("{} {}\n", part.name, identity.*part.digest);
  return text;
}

std::optional<JobIdentity> parse_identity(std::string_view text) {
  JobIdentity identity;
  for (Part const& part : parts) {
    std::size_t const end = text.find('\n');
    if (end == std::string_view::npos || !text.starts_with(fmt::format("{} ", part.name)))
      return std::nullopt;
    identity.*part.digest = text.substr(part.name.size() + 1, end - part.name.size() - 1);
    text.remove_prefix(end + 1);
  }
  if (!text.empty()) return std::nullopt;
  return identity;
}

std::string difference(JobIdentity const& before, JobIdentity const& now) {
  for (Part const& part : parts)
    if (before.*part.digest != now.*part.digest) return std::string(part.changed);
  return "";
}

}  // namespace reshard
