#include "pipeline/target/target_build.hpp"

#include <algorithm>
#include <map>
#include <set>

#include "core/base/file.hpp"
#include "pipeline/target/file_records.hpp"
#include "pipeline/target/gathered_texts.hpp"
#include "pipeline/target/shared_edges.hpp"
#include "pipeline/target/source_stamp.hpp"
#include "pipeline/target/strangers.hpp"
#include "pipeline/target/target_check.hpp"
#include "pipeline/version.hpp"
#include "stages/write/copy_beside.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

void sync_file(fs::path const& path) {
  File file = File::open_for_writing(path);
  file.sync();
  file.close();
}

/// Enough for the scan to keep the disk busy.
constexpr std::uint64_t usual_scan_bytes = 64U << 20;

/// By what sums differ from how they stood before; they stand so now. Only those that were touched
/// are looked at.
template <class Word>
std::vector<SumShare> changes(std::span<std::size_t const> touched, std::span<Word> now,
                              std::vector<Word>& before) {
  std::vector<SumShare> shares;
  for (std::size_t const i : touched) {
    if (now[i] == before[i]) continue;
    shares.push_back({i, static_cast<std::uint64_t>(now[i] ^ before[i])});
    before[i] = now[i];
  }
  return shares;
}

/// With paths below the staging folder, which gets its name later.
std::vector<TargetLayout> layouts_of(JobPlan const& plan) {
  std::vector<TargetLayout> layouts;
  for (TargetFile const& file : plan.files)
    layouts.push_back({file.path, file.size_bytes, file.torch, file.header, file.items,
                       file.skeleton, file.finished});
  return layouts;
}

}  // namespace

TargetBuild::TargetBuild(JobSpec const& spec, JobPlan const& plan, Comm const& comm)
    : spec_(spec), plan_(plan), comm_(comm), layouts_(layouts_of(plan)) {
  records_.emplace(layouts_);
  file_digests_.emplace(layouts_);
}

/// Without a stamp a night converts again: a folder of the source that may not be read is no reason
/// to end a job.
void TargetBuild::add_stamp() {
  auto const error =
      capture([&] { source_record_.set("stamp", stamp_json(source_stamp(spec_.source.path))); });
  if (error && error->kind() != ErrorKind::source) throw *error;
}

void TargetBuild::begin(Checkpoint const& source, Beginning const& beginning) {
  account_.emplace(plan_, source.records.size());
  auto found = Found::nothing;
  std::string token;
  together(comm_, [&] {
    if (comm_.rank() != 0) return;
    check_target(spec_, source, beginning.space);
    publication_.emplace(spec_.target.path, existing_target(spec_));
    token = publication_->token();
    identity_ = beginning.identity;
    found = take_over(beginning);
    // Before anything is read but headers: a change from now on ends the job, or shows in the
    // stamp.
    if (source_record_.find("stamp") == nullptr) add_stamp();
  });
  use_token(comm_.broadcast(std::move(token), 0));
  found = static_cast<Found>(comm_.max(static_cast<int>(found)));
  journaled_ = beginning.journaled;
  complete_ = found == Found::all;
  if (complete_) return;
  bool const going_on = found == Found::part;
  together(comm_, [&] {
    for_my_files([&](std::uint32_t f) {
      going_on ? reopen_target_file(layouts_[f]) : create_target_file(layouts_[f]);
    });
  });
  if (going_on) {
    earlier_ = journal_->take_over(comm_,
                                   {[&](std::uint32_t f) { sync_file(layouts_[f].path); },
                                    [&](auto const& held) { write_held(held); }},
                                   {.cells = plan_.plan.cells.size(),
                                    .digests = plan_.plan.tensor_bytes.size(),
                                    .records = records_->shares().size(),
                                    .files = file_digests_->shares().size(),
                                    .sources = source.records.size()});
    if (comm_.rank() == 0) restore_sums(earlier_->done);
    account_->add_earlier(earlier_->done);
  } else if (journaled_) {
    together(comm_, [&] {
      if (comm_.rank() == 0) note_job();
    });
  }
  std::error_code ignored;
  bool const seen =
      source.storage == Storage::chunks && fs::exists(source.folder / integrity_name, ignored);
  bool const has_one = comm_.max(seen ? 1 : 0) != 0;
  integrity_ = format_of(spec_.target.format).target().checksums &&
               spec_.target.integrity != IntegrityChoice::never &&
               (has_one || spec_.target.integrity == IntegrityChoice::always);
}

/// Every rank has the same names from rank 0.
void TargetBuild::use_token(std::string const& token) {
  staging_ = staging_of(spec_.target.path, token);
  journal_.emplace(journal_of(spec_.target.path, token));
  for (TargetLayout& layout : layouts_) layout.path = staging_ / layout.path;
  open_files_.emplace(files(), FileSet::Access::write);
}

void TargetBuild::note_job() const {
  bool const nightly = source_record_.find("nightly") != nullptr;
  journal_->create(publication_->staging(), identity_, nightly ? spec_.source.path : "");
}

/// On rank 0. Unless something is gone on with, the staging folder is new and empty.
TargetBuild::Found TargetBuild::take_over(Beginning const& beginning) {
  if (!publication_->is_locked())
    warnings_.push_back(fmt::format(
        "{}: its file system has no locks. Another job for this target is noticed by its changes only, and what a killed run "
        "left is gone on with after {} s without a change.",
        spec_.target.path, quiet_seconds));
  Leftovers const& left = publication_->leftovers();
  std::string why;
  for (fs::path const& folder : left.journals)
    for (fs::path const& staging : left.staging) {
      RunJournal const journal(folder);
      auto const reason = obstacle(journal, staging, beginning);
      if (reason && (why.empty() || journal.is_of(staging))) why = *reason;
      if (reason) continue;
      bool const complete = journal.is_complete(staging);
      if (!complete && !beginning.journaled) continue;
      publication_->go_on(folder, staging);
      if (complete) {
        auto const made = find_manifest(publication_->staging());
        total_ = made ? made->total : "";
        return Found::all;
      }
      remove_unplanned();
      return Found::part;
    }
  if (!left.staging.empty()) {
    if (beginning.fresh) why = "--fresh was given";
    if (why.empty())
      why = beginning.journaled ? "its journal is no folder, or gone"
                                : "with this target.io a run always begins again";
    warnings_.push_back(
        fmt::format("{}: left by an earlier run, not gone on with: {}. It was removed.",
                    left.staging.front().string(), why));
  }
  publication_->start_afresh();
  return Found::nothing;
}

/// Why an earlier run cannot be gone on with.
std::optional<std::string> TargetBuild::obstacle(RunJournal const& journal, fs::path const& staging,
                                                 Beginning const& beginning) const {
  if (beginning.fresh) return "--fresh was given";
  if (auto reason = journal.obstacle(staging, beginning.identity)) return reason;
  if (!publication_->is_own_folder(staging) || !publication_->is_own_folder(journal.folder()))
    return "it belongs to another user";
  for (TargetFile const& file : plan_.files) {
    fs::path const path = staging / file.path;
    std::error_code missing;
    if (!fs::is_regular_file(fs::symlink_status(path, missing)) ||
        fs::file_size(path, missing) != file.size_bytes)
      return fmt::format("{} is missing or has another size", path.filename().string());
  }
  return std::nullopt;
}

/// Small files are made anew, and nothing that lies between them is published.
void TargetBuild::remove_unplanned() const {
  fs::path const& staging = publication_->staging();
  std::set<fs::path> planned;
  for (TargetFile const& file : plan_.files)
    for (fs::path path = staging / file.path; path != staging; path = path.parent_path())
      planned.insert(path);
  std::vector<fs::path> others;
  for (auto entry = fs::recursive_directory_iterator(staging);
       entry != fs::recursive_directory_iterator(); ++entry) {
    if (planned.contains(entry->path())) continue;
    others.push_back(entry->path());
    entry.disable_recursion_pending();
  }
  for (fs::path const& other : others) fs::remove_all(other);
}

/// On one rank: the sums of all ranks are combined in the end.
void TargetBuild::restore_sums(JournalEntry const& done) {
  for (SumShare const& one : done.records)
    records_->shares()[one.number] ^= static_cast<std::uint32_t>(one.value);
  for (SumShare const& one : done.files) file_digests_->shares()[one.number] ^= one.value;
}

void TargetBuild::keep(bool kept) {
  distrust_lost_writes();
  if (publication_) publication_->keep(complete_ || (kept && journaled_));
}

Error TargetBuild::explained(Error const& error) const {
  std::error_code unknown;
  if (complete_) return error;  // publish() looks itself, and says so
  if (staging_.empty() || fs::symlink_status(staging_, unknown).type() != fs::file_type::not_found)
    return error;
  return {
      ErrorKind::target,
      fmt::format(
          "{}: is not there any more: another job has taken it over, or somebody removed it. Nothing was published: look "
          "what else writes {}, then run again.",
          staging_.string(), spec_.target.path)};
}

void TargetBuild::distrust_lost_writes() const {
  if (journaled_ && journal_ && write_back_has_failed()) journal_->distrust();
}

void TargetBuild::begin_rounds(bool lockstep, std::vector<std::uint32_t> kept) {
  keep(true);
  noted_records_.assign(records_->shares().begin(), records_->shares().end());
  noted_files_.assign(file_digests_->shares().begin(), file_digests_->shares().end());
  if (!journaled_) return;
  edges_.emplace(find_edges(plan_.plan, comm_));
  together(comm_, [&] {
    auto const sync = [this](std::uint32_t file) { open_files_->sync(file); };
    journal_->begin(comm_, {.lockstep = lockstep, .kept = std::move(kept), .sync_file = sync});
  });
}

/// What ranks of an earlier run had kept back when it ended.
void TargetBuild::write_held(std::span<HeldBytes const> held) const {
  std::map<std::uint32_t, std::vector<FileSegment>> by_file;
  for (HeldBytes const& one : held) {
    auto const& [offset, bytes] = one.segment;
    std::uint64_t const size = layouts_[one.file].size_bytes;
    if (offset > size || bytes.size() > size - offset)
      fail(
          ErrorKind::io,
          "{}: the journal has {} bytes for offset {}, the file ends after {}. Run again with --fresh.",
          layouts_[one.file].path.string(), bytes.size(), offset, size);
    by_file[one.file].push_back(one.segment);
  }
  for (auto const& [number, segments] : by_file) {
    File file = File::open_for_writing(layouts_[number].path);
    for (FileSegment const& segment : segments)
      file.write_at(segment.offset_bytes, std::as_bytes(std::span(segment.bytes)));
    file.sync();
    file.close();
  }
}

void TargetBuild::sync_everywhere() const {
  std::set<std::uint32_t> all;
  for (std::uint32_t f = 0; f < layouts_.size(); ++f) all.insert(f);
  sync_on_every_machine(comm_, all, [&](std::uint32_t f) { sync_file(layouts_[f].path); });
}

void TargetBuild::note(FinishedRound const& round) {
  JournalEntry entry = account_->add(round);
  if (!journaled_) return;
  entry.records = changes(records_->take_touched(), records_->shares(), noted_records_);
  entry.files = changes(file_digests_->take_touched(), file_digests_->shares(), noted_files_);
  entry.held = edges_->take_new();
  for (Extent const& write : round.writes) entry.unsynced.insert(write.file);
  journal_->add(std::move(entry), round.writes);
}

std::vector<fs::path> TargetBuild::files() const {
  std::vector<fs::path> paths;
  for (TargetLayout const& layout : layouts_) paths.push_back(layout.path);
  return paths;
}

void TargetBuild::for_my_files(std::function<void(std::uint32_t)> const& work) const {
  for (std::size_t f = static_cast<std::size_t>(comm_.rank()); f < layouts_.size();
       f += static_cast<std::size_t>(comm_.size()))
    work(static_cast<std::uint32_t>(f));
}

void TargetBuild::observe(std::uint32_t file, std::uint64_t offset_bytes,
                          std::span<std::byte const> bytes) {
  account_->add_written(file, bytes.size());
  records_->add(file, offset_bytes, bytes);
  if (spec_.run.verify == VerifyChoice::written) file_digests_->add(file, offset_bytes, bytes);
}

void TargetBuild::finish(std::span<std::uint64_t const> digests) {
  together(comm_, [&] {
    journal_->end();
    open_files_->close();
  });
  account_->gather(comm_);
  together(comm_, [&] { account_->expect_whole(plan_); });
  std::vector<std::vector<FileSegment>> const held =
      gathered_edges(edges(), layouts_.size(), comm_);
  digests_.assign(digests.begin(), digests.end());
  if (earlier_ && comm_.rank() == 0 && !digests_.empty())
    for (SumShare const& one : earlier_->done.digests) digests_[one.number] ^= one.value;
  comm_.xor_all(records_->shares());
  comm_.xor_all(digests_);
  together(comm_, [&] {
    for_my_files([&](std::uint32_t f) {
      std::vector<FileSegment> const frame = frame_of(layouts_[f], records_->of_file(f), digests_);
      finish_target_file(layouts_[f], frame, held[f]);
      for (FileSegment const& segment : frame)
        file_digests_->add(f, segment.offset_bytes, std::as_bytes(std::span(segment.bytes)));
    });
  });
  comm_.xor_all(file_digests_->shares());
  together(comm_, [&] {
    if (comm_.rank() == 0) write_small_files();
  });
  if (integrity_) add_integrity();
}

/// Of the folder that Megatron loads: every file that lies in it, hashed by the ranks in turn.
void TargetBuild::add_integrity() {
  fs::path const folder = layouts_.front().path.parent_path();
  std::vector<std::string> mine;
  together(comm_, [&] {
    std::vector<fs::path> paths;
    for (auto const& entry : fs::directory_iterator(folder))
      if (entry.is_regular_file()) paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    for (std::size_t i = static_cast<std::size_t>(comm_.rank()); i < paths.size();
         i += static_cast<std::size_t>(comm_.size()))
      mine.push_back(sha256_of(paths[i]) + paths[i].filename().string());
  });
  Integrity integrity;
  for (std::string const& one : gathered_texts(mine, comm_))
    integrity.files.push_back({one.substr(64), one.substr(0, 64)});
  std::sort(integrity.files.begin(), integrity.files.end(),
            [](auto const& a, auto const& b) { return a.path < b.path; });
  together(comm_, [&] {
    if (comm_.rank() != 0) return;
    std::string const text = integrity_text(integrity);
    write_text_file(folder / integrity_name, text);
    small_files_.push_back(record_of_text(
        (folder / integrity_name).lexically_relative(publication_->staging()).generic_string(),
        text));
  });
}

/// Sidecars and texts; what makes the checkpoint count comes last.
void TargetBuild::write_small_files() {
  fs::path const& staging = publication_->staging();
  if (plan_.reference) copy_sidecars(*plan_.reference, plan_.reference_to);
  for (SideCopy const& side : plan_.side_copies) {
    copy_beside(side.from, staging / side.to);
    add_copied(side);
  }
  for (bool const mark : {false, true})
    for (TextFile const& text : plan_.texts) {
      if (text.mark != mark) continue;
      std::string const bytes = text.make ? text.make() : text.text;
      write_text_file(staging / text.path, bytes);
      small_files_.push_back(record_of_text(text.path.generic_string(), bytes));
    }
}

void TargetBuild::copy_sidecars(huggingface::Folder const& from, fs::path const& to) {
  make_folders(publication_->staging() / to);
  for (std::string const& name : from.sidecars) {
    huggingface::copy_sidecar(from, name, publication_->staging() / to);
    FileRecord record = record_of(from.path / name, from.path);
    record.path = (to / record.path).generic_string();
    small_files_.push_back(std::move(record));
  }
}

/// A file, or every file of a folder.
void TargetBuild::add_copied(SideCopy const& side) {
  if (!fs::is_directory(side.from)) {
    FileRecord record = record_of(side.from, side.from.parent_path());
    record.path = side.to.generic_string();
    small_files_.push_back(std::move(record));
    return;
  }
  for (auto const& entry : fs::recursive_directory_iterator(side.from)) {
    if (!entry.is_regular_file()) continue;
    FileRecord record = record_of(entry.path(), side.from);
    record.path = (side.to / record.path).generic_string();
    small_files_.push_back(std::move(record));
  }
}

void TargetBuild::check(std::string_view source_format, std::string_view source_layout,
                        std::function<void(std::uint64_t)> const& watch) {
  if (spec_.run.verify == VerifyChoice::off) return seal();
  if (spec_.run.verify == VerifyChoice::written) {
    check_files(watch);
    together(comm_, [&] {
      if (comm_.rank() == 0) check_small_files();
    });
  }
  together(comm_, [&] {
    Manifest const made = manifest(source_format, source_layout);
    total_ = made.total;
    if (comm_.rank() == 0)
      write_text_file(publication_->staging() / manifest_name, manifest_text(made));
  });
  seal();
}

/// From here on what was written is worth keeping, whatever its publication meets: the next run of
/// the job only gives it its name.
void TargetBuild::seal() {
  together(comm_, [&] {
    if (comm_.rank() != 0) return;
    check_nothing_else();
    if (!journaled_) note_job();
    journal_->mark_complete(publication_->staging());
  });
  complete_ = true;
  keep(true);
}

/// What another program puts into the folder while it is made would be published with it.
void TargetBuild::check_nothing_else() const {
  std::set<std::string> files{std::string(manifest_name)};
  for (FileRecord const& one : small_files_) files.insert(one.path);
  for (TargetFile const& file : plan_.files) files.insert(file.path.generic_string());
  std::error_code error;
  std::string const stranger =
      find_stranger(publication_->staging(), files, Folders::ignore, error);
  if (error)
    fail(ErrorKind::io, "{}: cannot be listed: {}. Check the file system, then run again.",
         publication_->staging().string(), error.message());
  if (stranger.empty()) return;
  fail(
      ErrorKind::self_check,
      "{}: holds {}, which this run did not write. Nothing was published: look what writes there, then run again.",
      publication_->staging().string(), stranger);
}

void TargetBuild::check_files(std::function<void(std::uint64_t)> const& watch) {
  std::optional<DigestWork> work;
  together(comm_, [&] { work = target_digest_work(plan_); });
  found_ = scan(comm_, files(), *work,
                {std::min(usual_scan_bytes, spec_.run.memory_bytes), true, true, watch});
  together(comm_, [&] {
    expect_target(plan_, *work, found_, {digests_, file_digests_->shares()});
  });
}

void TargetBuild::check_small_files() {
  fs::path const& staging = publication_->staging();
  for (FileRecord const& expected : small_files_) {
    FileRecord const found = record_of(staging / expected.path, staging);
    if (found == expected) continue;
    fail(
        ErrorKind::self_check,
        "{}: has {} bytes with XXH3 {}, {} bytes with {} were written. Nothing was published: look for hardware errors, then "
        "run again.",
        (staging / expected.path).string(), found.size_bytes, hex64(found.xxh3),
        expected.size_bytes, hex64(expected.xxh3));
  }
}

std::vector<FileRecord> TargetBuild::file_records() const {
  if (spec_.run.verify != VerifyChoice::written) return {};
  std::vector<FileRecord> records = small_files_;
  for (std::size_t f = 0; f < plan_.files.size(); ++f)
    records.push_back(
        {plan_.files[f].path.generic_string(), found_.files[f].size_bytes, found_.files[f].xxh3});
  std::sort(records.begin(), records.end(),
            [](FileRecord const& a, FileRecord const& b) { return a.path < b.path; });
  return records;
}

/// Without their digests.
Json TargetBuild::file_names() const {
  Json names = Json::array();
  for (FileRecord const& one : small_files_) names.push(one.path);
  for (auto const& file : plan_.files) names.push(file.path.generic_string());
  return names;
}

Manifest TargetBuild::manifest(std::string_view source_format,
                               std::string_view source_layout) const {
  Manifest made;
  made.tool_version = version_number();
  made.format = name(spec_.target.format);
  made.map = plan_.stored_names ? "none" : plan_.map_name.empty() ? "mcore" : plan_.map_name;
  made.files = file_records();
  made.source.set("path", spec_.source.path)
      .set("format", source_format)
      .set("layout", source_layout);
  if (auto const* more = source_record_.members(); more != nullptr)
    for (auto const& [key, value] : *more) made.source.set(key, value);
  if (source_record_.find("nightly") != nullptr && made.files.empty())
    made.source.set("files", file_names());
  made.job = Json(print_spec(spec_));
  made.tensors =
      tensor_list(*plan_.model, plan_.target, !plan_.stored_names, digests_, plan_.target_adds);
  for (std::size_t i = 0; i < plan_.opaque.size(); ++i) {
    OpaqueCopy const& copy = plan_.opaque[i];
    std::string const place =
        fmt::format("{}:{}", plan_.target.files[copy.dst_file], copy.dst_offset_bytes);
    made.objects.push_back({place,
                            "",
                            {static_cast<Index>(copy.bytes)},
                            {},
                            digests_[plan_.model->tensors().size() + i],
                            0});
  }
  made.total = total_digest(made.tensors);
  return made;
}

void TargetBuild::publish() {
  together(comm_, [&] {
    if (comm_.rank() != 0) return;
    publication_->publish();
    if (!publication_->left_behind().empty()) warnings_.push_back(publication_->left_behind());
  });
}

}  // namespace reshard
