#pragma once

#include <filesystem>
#include <vector>

#include "core/formats/format.hpp"

namespace reshard::hdf5 {

/// HDF5 files: containers of ours with logical tensors or stored names, and other programs' files
/// with a dataset per tensor.
class Hdf5Format final : public Format {
 public:
  FormatId id() const override { return FormatId::hdf5; }
  FormatWords words() const override;
  bool yields() const override { return true; }
  bool probe(std::filesystem::path const& path) const override;
  /// Errors in addition to those of read_file(): parts that are missing or belong to several
  /// checkpoints, a name in two files.
  Checkpoint open(std::filesystem::path const& path, OpenChoice const& choice,
                  HeaderExchange const& exchange) const override;
  Inspection describe(std::filesystem::path const& path,
                      megatron::UserSizes const& sizes) const override;
  StoredView view(Checkpoint const& checkpoint, std::string const& prefix) const override;
  StateInventory inventory(Checkpoint const& checkpoint, StoredView const& view) const override;
  std::optional<RunRecord> run_record(Checkpoint const& checkpoint) const override;
  TargetTraits target() const override;
  void lay_out(MappedTarget const& job, TargetDraft& draft) const override;
  void lay_out_named(NamedTarget const& job, TargetDraft& draft) const override;
  std::optional<huggingface::Folder> model_files(Checkpoint const& checkpoint) const override;
};

}  // namespace reshard::hdf5
