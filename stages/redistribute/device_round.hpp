#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/device/program.hpp"
#include "core/plan/cells/round.hpp"
#include "core/plan/views/raw_views.hpp"

namespace reshard {

/// The memory in which messages begin and end: the host's staging block (MPI) or the device's
/// (NCCL).
enum class MessagePlace { host, device };

/// The work of a round on a device. A block of the device's memory mirrors the host's staging
/// block: inputs are uploaded to the same offsets, results downloaded to them. Bytes that are
/// written as they were read never leave the host.
struct DeviceRound {
  RoundWork
      work;  ///< staging_bytes counts the programs, too; reads of views are reads of stored bytes
  std::vector<ViewPart> computed;
  Program before;  ///< computes views, copies locally and packs; after the uploads
  Program after;   ///< unpacks, after the messages
  std::uint64_t before_at = 0;
  std::uint64_t after_at = 0;
  std::optional<std::uint64_t>
      verdict_at;  ///< of the conversions (value_program.hpp); downloaded after `before`
  /// Bytes of the staging block.
  std::vector<ByteRange> uploads;    ///< programs and the empty verdict included
  std::vector<ByteRange> downloads;  ///< written bytes that were not read unchanged
  std::vector<ByteRange> packed;     ///< messages in host memory: downloaded before they are sent
  std::vector<ByteRange> arrived;    ///< messages in host memory: uploaded after they have arrived
  std::vector<DigestPart> computed_digests;  ///< of computed values; work.digests are those of
                                             ///< bytes that the host has read
  std::uint64_t sums_at = 0;       ///< of computed_digests, 8 bytes each; downloaded after `before`
  std::uint64_t bytes_copied = 0;  ///< by the programs

  /// Whether the round has no work other than reading and writing.
  bool idle() const {
    return before.launches.empty() && after.launches.empty() && work.fills.empty() &&
           work.sends.empty() && work.receives.empty();
  }
};

/// View v has the file number first_view_file + v.
DeviceRound make_device_round(RoundWork work, std::span<SourceView const> views,
                              std::uint32_t first_view_file, MessagePlace messages);

/// The shares of computed values in their digests, of a round that has ended in `staging`.
std::vector<DigestShare> computed_digests(DeviceRound const& round, std::byte const* staging);

/// Writes programs, zero sums and the empty verdict into staging, for the uploads. `staging` has
/// work.staging_bytes bytes.
void place_programs(DeviceRound const& round, std::byte* staging);

}  // namespace reshard
