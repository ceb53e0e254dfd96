#pragma once

#include "core/formats/format.hpp"

namespace reshard::fsdp_ranks {

/// A file of each rank with its part of an FSDP model, model_world_size_N_rank_R.pt, and of its
/// optimizer, as verl, SkyRL and lmms-engine save them. The stored names are those of the model's
/// state dict, and for optimizer state those of PyTorch's distributed checkpoints.
class FsdpRanksFormat final : public Format {
 public:
  FormatId id() const override { return FormatId::fsdp_ranks; }
  FormatWords words() const override;
  bool probe(std::filesystem::path const& path) const override;
  Checkpoint open(std::filesystem::path const& path, OpenChoice const& choice,
                  HeaderExchange const& exchange) const override;
  Inspection describe(std::filesystem::path const& path,
                      megatron::UserSizes const& sizes) const override;
  StoredView view(Checkpoint const& checkpoint, std::string const& prefix) const override;
  StateInventory inventory(Checkpoint const& checkpoint, StoredView const& view) const override;
  std::optional<RunRecord> run_record(Checkpoint const& checkpoint) const override;
  std::vector<std::pair<std::string, std::string>> made_objects(
      Checkpoint const& checkpoint) const override;
  /// Not a target format; its optimizer state can go into the formats of Megatron.
  TargetTraits target() const override { return {.written = false, .carries_state = true}; }
  std::optional<huggingface::Folder> model_files(Checkpoint const& checkpoint) const override;
};

}  // namespace reshard::fsdp_ranks
