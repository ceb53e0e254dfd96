#include "pipeline/verify/verify_part.hpp"

#include <algorithm>
#include <charconv>
#include <ctime>
#include <system_error>

#include <unistd.h>

#include "core/base/files/file.hpp"
#include "core/base/files/paths.hpp"
#include "core/base/hash/xxh3.hpp"
#include "core/base/tables/counted.hpp"
#include "core/transport/gathered_texts.hpp"
#include "core/transport/shared_sight.hpp"
#include "pipeline/records/reading_record.hpp"
#include "pipeline/verify/file_part.hpp"
#include "pipeline/verify/own_record.hpp"
#include "stages/read/open_source.hpp"

namespace reshard {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t seconds_of_a_day = 86'400;

/// A fault of one of the expected files.
struct Fault {
  std::size_t file = 0;
  std::string text;
};

class PartVerifier {
 public:
  PartVerifier(PartQuery const& query, Comm const& comm) : query_(query), comm_(comm) {}

  PartReport run() {
    now_ = comm_.max(static_cast<std::int64_t>(::time(nullptr)));
    part_ = parse_file_part(query_.part, now_ / seconds_of_a_day);
    together_seeing(comm_, [&] { check_checkpoint_folder(query_.path); });
    auto const unreadable = capture([&] { checkpoint_ = open_source(query_.path, comm_); });
    auto const nothing = capture([&] {
      together_seeing(comm_, [&] {
        own_ = find_record(query_.path, std::vector<fs::path>(checkpoint_.files),
                           checkpoint_.storage == Storage::shares);
      });
    });
    if (nothing) throw unreadable ? *unreadable : *nothing;
    if (!own_.lists_files())
      fail(
          ErrorKind::usage,
          "{}: lists no files, because the job that wrote it did not read them back, so no part of "
          "them can be compared. Compare all tensors instead: reshard verify {}.",
          own_.file(), query_.path.string());
    expected_ = expected_files(own_);
    choose();
    open_record();
    read();
    if (unreadable)
      others_.push_back(unreadable->sentence());
    else
      add_unlisted(own_, checkpoint_, others_);
    note();
    return report();
  }

 private:
  /// Rank 0 looks at sizes that are not recorded.
  void choose() {
    std::string packed;
    together(comm_, [&] {
      if (comm_.rank() != 0) return;
      for (ExpectedFile const& file : expected_) {
        std::error_code ignored;
        std::uintmax_t const there = fs::file_size(own_.root / file.path(), ignored);
        sizes_.push_back(file.record != nullptr ? file.record->size_bytes : ignored ? 0 : there);
      }
      for (bool const member : files_in(part_, sizes_)) packed += member ? '1' : '0';
    });
    packed = comm_.broadcast(std::move(packed), 0);
    for (char const member : packed) members_.push_back(member == '1');
  }

  /// Before anything is read: the time for it may be long.
  void open_record() {
    place_ = query_.record.empty() ? reading_record_of(full_path(own_.root)) : query_.record;
    together(comm_, [&] {
      if (comm_.rank() != 0) return;
      fs::path const folder = full_path(place_).parent_path();
      if (fs::path const within = folder.lexically_relative(full_path(own_.root));
          !within.empty() && *within.begin() != "..")
        fail(ErrorKind::usage,
             "{}: the record of what was read must not be inside the checkpoint. Name another "
             "place with --record FILE.",
             place_.string());
      readings_ = load_readings(place_, listed());
      if (::access(folder.c_str(), W_OK) != 0)
        fail(ErrorKind::usage,
             "{}: the record of what was read cannot be written: {}. Name another place with "
             "--record FILE.",
             place_.string(), system_reason(errno));
    });
  }

  /// A checkpoint with other content has another one.
  std::string listed() const {
    std::string lines;
    for (ExpectedFile const& file : expected_)
      lines += fmt::format("{} {} {}\n", json_quoted(file.path()),
                           file.record != nullptr ? hex64(file.record->xxh3) : "-",
                           file.sum != nullptr ? file.sum->sha256 : "-");
    return xxh3_128(lines);
  }

  /// Files of the part in turn, so that each rank reads about as many.
  void read() {
    std::vector<std::string> mine;
    together(comm_, [&] {
      auto const ranks = static_cast<std::size_t>(comm_.size());
      std::size_t turn = 0;
      for (std::size_t i = 0; i < expected_.size(); ++i) {
        std::size_t const reader = members_[i] ? turn++ % ranks : i % ranks;
        if (reader != static_cast<std::size_t>(comm_.rank())) continue;
        std::string const fault = members_[i] ? fault_of(own_.root, expected_[i])
                                              : fault_without_reading(own_.root, expected_[i]);
        if (!fault.empty()) mine.push_back(fmt::format("{} {}", i, fault));
      }
    });
    for (std::string const& text : gathered_texts(mine, comm_)) {
      Fault fault;
      std::size_t const space = text.find(' ');
      std::from_chars(text.data(), text.data() + space, fault.file);
      fault.text = text.substr(space + 1);
      faults_.push_back(std::move(fault));
    }
    std::ranges::sort(faults_, {}, &Fault::file);
  }

  bool is_good(std::size_t file) const {
    return std::ranges::find(faults_, file, &Fault::file) == faults_.end();
  }

  void note() {
    together(comm_, [&] {
      if (comm_.rank() != 0) return;
      std::string const when = utc_text(now_);
      ReadingRecord::Part part{when, 0, 0, true};
      for (std::size_t i = 0; i < expected_.size(); ++i) {
        if (!members_[i]) continue;
        readings_.files[expected_[i].path()] = {when, is_good(i)};
        part.good = part.good && is_good(i);
        part.bytes += sizes_[i];
        ++part.files;
      }
      readings_.parts[fmt::format("{}/{}", part_.number, part_.of)] = part;
      done_ = part;
      save_readings(place_, readings_);
    });
  }

  /// On rank 0 complete.
  PartReport report() const {
    PartReport result;
    result.sound = faults_.empty() && others_.empty();
    Json faults = Json::array();
    auto const add = [&](std::string const& fault) {
      faults.push(fault);
      result.text += fault + "\n";
    };
    for (Fault const& fault : faults_) add(fault.text);
    for (std::string const& fault : others_) add(fault);
    result.line = fmt::format("part {} of {}: {} of {}, {}", part_.number, part_.of, done_.files,
                              counted(expected_.size(), "file"), human_bytes(done_.bytes));
    result.text += fmt::format("{}: {}, against {}\n", result.sound ? "OK" : "damaged", result.line,
                               own_.name());
    std::string oldest;
    for (auto const& [path, file] : readings_.files)
      if (oldest.empty() || file.read < oldest) oldest = file.read;
    result.text += fmt::format("read so far: {} of {}{}, noted in {}\n", readings_.files.size(),
                               counted(expected_.size(), "file"),
                               oldest.empty() ? "" : ", the oldest on " + oldest, place_.string());
    result.json.set("path", query_.path.string())
        .set("part", part_.number)
        .set("of", part_.of)
        .set("files_read", done_.files)
        .set("bytes_read", done_.bytes);
    result.json.set("files", expected_.size())
        .set("files_read_so_far", readings_.files.size())
        .set("oldest", oldest.empty() ? Json() : Json(oldest))
        .set("record", place_.string());
    result.json.set("faults", std::move(faults)).set("sound", result.sound);
    return result;
  }

  PartQuery const& query_;
  Comm const& comm_;
  std::int64_t now_ = 0;  ///< the same on every rank
  FilePart part_;
  Checkpoint checkpoint_;
  OwnRecord own_;
  std::vector<ExpectedFile> expected_;
  std::vector<std::uint64_t> sizes_;  ///< on rank 0
  std::vector<bool> members_;
  fs::path place_;
  ReadingRecord readings_;    ///< on rank 0
  ReadingRecord::Part done_;  ///< on rank 0
  std::vector<Fault> faults_;
  std::vector<std::string> others_;  ///< faults that are no expected file's
};

}  // namespace

PartReport verify_part(PartQuery const& query, Comm const& comm) {
  return PartVerifier(query, comm).run();
}

}  // namespace reshard
