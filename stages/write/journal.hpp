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
#include "core/base/file.hpp"
#include "core/base/file_segment.hpp"
#include "core/plan/compile.hpp"
#include "core/plan/round.hpp"

namespace reshard {

/// A word of a sum: `value` belongs to sum number `number`. Sums are built by xor unless something
/// else is said.
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

/// What one or more rounds have done to a target: the cells that are complete in it, and what they
/// added to the sums of the job.
struct JournalEntry {
  std::uint64_t round = 0;
  std::uint64_t bytes = 0;             ///< payload written
  std::vector<CellRange> cells;        ///< of the whole plan
  std::vector<SumShare> digests;       ///< of the source, by tensor
  std::vector<SumShare> records;       ///< CRC-32 of zip records, by RecordChecksums::shares()
  std::vector<SumShare> files;         ///< CRC-64 of files, by FileDigests::shares()
  std::vector<SumShare> sources = {};  ///< CRC-32 of the source's zip records (RecordShare)
  // Built by addition:
  std::vector<SumShare> covered = {};   ///< of the source's zip records (RecordShare)
  std::vector<SumShare> digested = {};  ///< bytes that `digests` are of, by tensor
  std::vector<SumShare> written = {};   ///< bytes, by target file
  // Not sums:
  std::vector<HeldBytes> held =
      {};  ///< counted in all that, but written only after the last round of all ranks
  std::vector<FileSpan> kept = {};  ///< counted, but not written: a previous target has these bytes
  std::set<std::uint32_t> unsynced =
      {};  ///< files with other bytes of these rounds, which no mark covers
  friend bool operator==(JournalEntry const&, JournalEntry const&) = default;
};

/// The journal of one rank in one run, as it is found again.
struct Journal {
  /// Which life of which machine wrote it. While it lasts, nothing that was written is lost, synced
  /// or not.
  std::string boot_id;
  std::uint64_t ranks = 0;  ///< of the run
  /// Rounds have messages and are numbered alike on all ranks: a round is done when every rank has
  /// written it.
  bool lockstep = false;
  std::vector<JournalEntry> entries;
  std::size_t synced = 0;  ///< so many entries, from the front, were on the device together with
                           ///< their data; held bytes are in the journal
};

/// Of this machine; "" where the system does not tell.
std::string this_boot_id();

/// An entry as it is in a journal, framed with its length and a checksum; and back, nothing for
/// any other bytes.
std::string journal_block(JournalEntry const& entry);
std::optional<JournalEntry> parse_journal_block(std::string_view bytes);

/// Makes a journal of one entry, under its name only when it is on the device.
void write_journal(std::filesystem::path const& path, JournalEntry const& entry);

/// Reads what is whole; a torn or damaged end is where the run was cut off. Nothing when there is
/// not even a beginning.
std::optional<Journal> read_journal(std::filesystem::path const& path);

/// Appends to the journal of a rank. The entry of a round goes to the system after the round's
/// bytes did, so it survives the death of the process with them. From time to time a thread syncs
/// the files that were written, then the journal with a mark: that survives the machine.
class JournalWriter {
 public:
  struct Parts {
    std::filesystem::path path;
    std::uint64_t ranks = 0;
    bool lockstep = false;
    std::function<void(std::uint32_t)>
        sync_file;  ///< by the number of a target file; called by several threads
    std::uint64_t sync_bytes = std::uint64_t{256} << 20;  ///< after so many bytes
    double sync_seconds = 5;                              ///< or so long after an entry
  };
  explicit JournalWriter(Parts parts);
  /// Syncs what was written, as far as it can.
  ~JournalWriter();
  JournalWriter(JournalWriter const&) = delete;
  JournalWriter& operator=(JournalWriter const&) = delete;

  /// `writes` are those of the round. Throws what the syncing thread met: nothing that it was to
  /// sync is safe then.
  void add(JournalEntry const& entry, std::span<Extent const> writes);

  /// No more rounds: syncs what was written. Throws what the syncing thread met.
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
  std::uint64_t marked_ = 0;  ///< so many of them have been covered by a mark
  bool ended_ = false;
  std::optional<Error> failure_;
  std::jthread syncing_;  // last: it uses what is above
};

}  // namespace reshard
