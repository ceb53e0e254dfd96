#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/formats/manifest/manifest.hpp"
#include "core/formats/manifest/sha256_sums.hpp"
#include "pipeline/job/job_spec.hpp"
#include "pipeline/publication/incremental/taken_tensors.hpp"
#include "stages/plan/job_plan.hpp"
#include "stages/write/unchanged_bytes.hpp"

namespace reshard {

/// Of FileDigests where a later target may take files over. One unchanged block of a thousand
/// costs 16 bytes of a manifest.
inline constexpr std::uint64_t reuse_block_bytes = std::uint64_t{1} << 20;

/// How a target takes over what is unchanged.
enum class ReuseWay {
  none,
  clone,  ///< it shares extents with the previous one
  link    ///< complete files are hard links, of the rest the bytes are copied
};

/// Bytes of a previous target that may be taken over (`target.incremental_from`).
struct PreviousTarget {
  bool records = false;  ///< this target records what the next one needs
  ReuseWay way = ReuseWay::none;
  std::uint64_t clone_bytes = 0;    ///< of a block, with ReuseWay::clone
  std::string why_not;              ///< nothing may: a sentence without its end, "" where some may
  std::vector<PreviousFile> files;  ///< by number of the target file; empty: nothing may be taken
  std::uint64_t usable_files = 0;
  std::uint64_t usable_bytes = 0;      ///< of those files
  Manifest record;                     ///< of a usable one
  std::vector<FileSum> sums;           ///< its SHA256SUMS, where that is of this record
  bool contradicted = false;           ///< its SHA256SUMS is of another record
  std::vector<std::uint64_t> layouts;  ///< file_layouts() of this target; empty without `records`
  TakenTensors taken;                  ///< of a usable one: taken over without reading the source

  bool is_usable() const { return usable_files > 0; }
  /// Digest of all that decides which bytes may be taken over, for JobIdentity; "" for nothing.
  std::string fingerprint() const;
};

/// Looks at the previous target that the job names. A file of it counts when it has the name and
/// the size of one of the plan, the CRC-64 of its blocks is recorded, and it is the file that was
/// read back before they were recorded. Whatever is wrong with it is no Error: then nothing is
/// taken over. `clone_bytes`: of blocks
/// that files can share; 0 where the target's file system cannot share extents. Looks
/// through Sight.
PreviousTarget find_previous(JobSpec const& spec, JobPlan const& plan, std::uint64_t clone_bytes);

/// Leaves out files of the previous target that are files of the source, too: a link changes when
/// an inode was changed last, by which a job sees that its source is written to.
void leave_source_unlinked(PreviousTarget& previous, JobPlan const& plan,
                           std::span<FileStamp const> source);

/// Sets `taken`: tensors whose digest the source has recorded (`fresh`, as of fresh_digests), which
/// the previous target has recorded, too, in files whose layout it has recorded and is that of the
/// plan. None where its SHA256SUMS is of another record. Pre: the target is usable.
void take_recorded(PreviousTarget& previous, JobPlan const& plan,
                   std::span<std::optional<std::uint64_t> const> fresh);

}  // namespace reshard
