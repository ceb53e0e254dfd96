#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/formats/checkpoint.hpp"
#include "core/io/file_io.hpp"
#include "core/plan/catalog.hpp"
#include "stages/read/record_shares.hpp"

namespace reshard {

/// How much of a record is read to compare it.
enum class RecordReading {
  as_is,     ///< what the arrays need: records that this is not all of are not compared
  complete,  ///< also the rest of each record that the arrays need bytes of, once
};

/// The zip records of a checkpoint, of which arrays read some: takes the sums of all bytes as they
/// are read, and remembers which records are as they were saved. The files must not change
/// meanwhile.
class ReadRecords {
 public:
  /// The checkpoint outlives this.
  explicit ReadRecords(Checkpoint const& checkpoint);

  /// An engine through the page cache whose files take the sums; nullptr where there are no
  /// records. This outlives its files. Files are numbered as those of the checkpoint.
  std::shared_ptr<FileIo> io();
  /// Bytes of a file that were read. Any thread.
  void add(std::uint32_t file, std::uint64_t offset_bytes, std::span<std::byte const> bytes);

  /// Records, of those that were read since the last call, with other bytes than their archives
  /// have recorded (RecordComparer).
  std::vector<std::string> take_faults(Catalog const& catalog, RecordReading reading);

 private:
  Checkpoint const& checkpoint_;
  RecordSums sums_;
  std::map<std::string, std::uint32_t> numbers_;  ///< of the files, where there are records
  std::mutex mutex_;
  std::map<std::uint32_t, RecordShare> read_;  ///< by record
  std::set<std::uint32_t> right_;              ///< records that were as they were saved
};

}  // namespace reshard
