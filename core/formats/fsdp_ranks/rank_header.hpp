#pragma once

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/files/file.hpp"
#include "core/formats/fsdp_ranks/folder.hpp"
#include "core/formats/fsdp_ranks/held_tensor.hpp"

namespace reshard::fsdp_ranks {

// The headers of rank files, as far as a plan needs them; the only payloads read are those of
// meshes and steps, and records of which a tensor has a part. Pickles are data: no class in them is
// made.

/// The common content of the files of many ranks.
struct FileForm {
  std::vector<MeshForm> meshes;
  std::vector<TensorForm> tensors;  ///< in the file's order; of state "NUMBER.exp_avg", or
                                    ///< "NAME.exp_avg" if the optimizer's keys are names
  std::vector<std::string> others;  ///< keys of values that are not tensors
  std::string settings;             ///< pickled list of param_groups; "" for none
  /// The parameters of each of `settings`, by the keys of their states.
  std::vector<std::vector<std::string>> members;
  /// The names of the members, if the optimizer was given them (param_names, torch 2.6 and later);
  /// else empty lists.
  std::vector<std::vector<std::string>> names;
};

/// The CRC-32 of a tensor in a longer record, such as the last rank's part of an uneven tensor,
/// which torch pads.
struct PartSum {
  std::uint64_t offset_bytes = 0;
  std::uint64_t size_bytes = 0;
  std::uint32_t crc32 = 0;
};

/// The header of one rank's file.
struct RankHeader {
  FileForm form;
  std::vector<std::vector<Index>> places;    ///< of the rank on each mesh
  std::vector<std::vector<HeldPart>> parts;  ///< parallel to FileForm::tensors
  std::vector<StorageRecord> records;
  std::vector<PartSum> sums;  ///< by offset_bytes; of records with a CRC-32
  std::string damage;         ///< a sentence without its dot about a record of `sums` that
                              ///< contradicts its CRC-32; "" for none
  std::uint64_t file_bytes = 0;
  std::optional<double> steps;  ///< of an optimizer's file, if all parameters have the same number
  std::string fault;            ///< the reason for which there is no such number, a sentence
                                ///< without its dot
};

constexpr auto wire_fields(FileForm const&) {
  using T = FileForm;
  return std::tuple(&T::meshes, &T::tensors, &T::others, &T::settings, &T::members, &T::names);
}
constexpr auto wire_fields(PartSum const&) {
  using T = PartSum;
  return std::tuple(&T::offset_bytes, &T::size_bytes, &T::crc32);
}
/// All members but `form`.
constexpr auto wire_fields(RankHeader const&) {
  using T = RankHeader;
  return std::tuple(&T::places, &T::parts, &T::records, &T::sums, &T::damage, &T::file_bytes,
                    &T::steps, &T::fault);
}

/// Errors of kind source with the path: a file whose content contradicts its name or its rank,
/// tensors of unknown classes.
RankHeader read_rank_header(File const& file);

}  // namespace reshard::fsdp_ranks
