#pragma once

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "core/base/error.hpp"
#include "core/base/files/file.hpp"
#include "core/base/files/file_segment.hpp"
#include "core/plan/cells/round.hpp"
#include "core/plan/compile.hpp"

namespace reshard {

/// A word of a sum: `value` belongs to sum number `number`. Sums are combined by xor unless stated
/// otherwise.
struct SumShare {
  std::uint64_t number = 0;
  std::uint64_t value = 0;
  friend bool operator==(SumShare const&, SumShare const&) = default;
};

/// Bytes of a target file that are still to be written.
struct HeldBytes {
  std::uint32_t file = 0;
  FileSegment segment;
  friend bool operator==(HeldBytes const&, HeldBytes const&) = default;
};

/// The effect of one or more rounds on a target: the cells that are complete in it, and their
/// shares in the sums of the job.
struct JournalEntry {
  std::uint64_t round = 0;
  std::uint64_t bytes = 0;             ///< payload written
  std::vector<CellRange> cells;        ///< of the complete plan
  std::vector<SumShare> digests;       ///< of the source, by tensor
  std::vector<SumShare> records;       ///< CRC-32 of zip records, by RecordChecksums::shares()
  std::vector<SumShare> files;         ///< CRC-64 of files, by FileDigests::shares()
  std::vector<SumShare> sources = {};  ///< CRC-32 of the source's zip records (RecordShare)
  // Combined by addition:
  std::vector<SumShare> covered = {};   ///< of the source's zip records (RecordShare)
  std::vector<SumShare> digested = {};  ///< bytes of `digests`, by tensor
  std::vector<SumShare> written = {};   ///< bytes, by target file
  // Not sums:
  std::vector<HeldBytes> held =
      {};  ///< included in the sums, but written only after the last round of all ranks
  std::vector<FileSpan> kept = {};  ///< included, but not written: a previous target has these
                                    ///< bytes
  std::set<std::uint32_t> unsynced =
      {};  ///< files with other bytes of these rounds, which no mark covers
  friend bool operator==(JournalEntry const&, JournalEntry const&) = default;
};

/// The journal of one rank in one run, as read by a later run.
struct Journal {
  /// The boot id of the machine that wrote it. Until a reboot no written data is lost, synced or
  /// not.
  std::string boot_id;
  std::uint64_t ranks = 0;  ///< of the run
  /// Rounds have messages and the same number on all ranks: a round is done when every rank has
  /// written it.
  bool lockstep = false;
  std::vector<JournalEntry> entries;
  std::size_t synced = 0;  ///< the number of entries, from the front, that were on the device
                           ///< together with their data; held bytes are in the journal
};

/// The boot id of this machine; "" if the system has none.
std::string this_boot_id();

/// An entry as bytes of a journal, framed with its length and a checksum; and the inverse, nullopt
/// for any other bytes.
std::string journal_block(JournalEntry const& entry);
std::optional<JournalEntry> parse_journal_block(std::string_view bytes);

/// Writes a journal of one entry, which gets its name once it is on the device.
void write_journal(std::filesystem::path const& path, JournalEntry const& entry);

/// Reads the complete entries; a torn or damaged end is where the run was cut off. nullopt if not
/// even the beginning is complete.
std::optional<Journal> read_journal(std::filesystem::path const& path);

/// Appends to the journal of a rank. The entry of a round is written after the round's bytes, so it
/// survives the death of the process with them. From time to time a thread syncs the written files,
/// then the journal with a mark: these entries survive the machine.
class JournalWriter {
 public:
  struct Parts {
    std::filesystem::path path;
    std::uint64_t ranks = 0;
    bool lockstep = false;
    std::function<void(std::uint32_t)>
        sync_file;  ///< by the number of a target file; called by several threads
    std::uint64_t sync_bytes = std::uint64_t{256} << 20;  ///< sync after this number of bytes
    double sync_seconds = 5;                              ///< or this time after an entry
  };
  explicit JournalWriter(Parts parts);
  /// Syncs the written files as far as possible.
  ~JournalWriter();
  JournalWriter(JournalWriter const&) = delete;
  JournalWriter& operator=(JournalWriter const&) = delete;

  /// `writes` are those of the round. Throws the error of the syncing thread: its files are then
  /// not safe.
  void add(JournalEntry const& entry, std::span<Extent const> writes);

  /// Ends the rounds: syncs the written files. Throws the error of the syncing thread.
  void end();

 private:
  void stop();
  void sync_all();
  void sync_now(std::unique_lock<std::mutex>& lock);
  void append(std::string const& block);

  Parts parts_;
  File file_;
  std::uint64_t size_bytes_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<std::uint32_t> dirty_;
  std::uint64_t dirty_bytes_ = 0;
  std::uint64_t entries_ = 0;
  std::uint64_t marked_ = 0;  ///< the number of entries covered by a mark
  bool ended_ = false;
  std::optional<Error> failure_;
  std::jthread syncing_;  // last member: the thread uses those above
};

}  // namespace reshard
