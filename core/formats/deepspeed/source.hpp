#pragma once

#include "core/formats/format.hpp"

namespace reshard::deepspeed {

/// DeepSpeed's checkpoints without tensor or pipeline parallelism: ZeRO stages 0 to 3, and
/// universal checkpoints. Names are those of the model's state dict; names of optimizer state
/// contain them (zero_table.hpp).
class DeepSpeedFormat final : public Format {
 public:
  FormatId id() const override { return FormatId::deepspeed; }
  FormatWords words() const override;
  bool probe(std::filesystem::path const& path) const override;
  std::string why_incomplete(std::filesystem::path const& path) const override;
  Checkpoint open(std::filesystem::path const& path, OpenChoice const& choice,
                  HeaderExchange const& exchange) const override;
  Inspection describe(std::filesystem::path const& path,
                      megatron::UserSizes const& sizes) const override;
  StoredView view(Checkpoint const& checkpoint, std::string const& prefix) const override;
  StateInventory inventory(Checkpoint const& checkpoint, StoredView const& view) const override;
  std::optional<RunRecord> run_record(Checkpoint const& checkpoint) const override;
  std::vector<std::pair<std::string, std::string>> made_objects(
      Checkpoint const& checkpoint) const override;
  TargetTraits target() const override;
  void lay_out(MappedTarget const& job, TargetDraft& draft) const override;
  void lay_out_named(NamedTarget const& job, TargetDraft& draft) const override;
  std::optional<huggingface::Folder> model_files(Checkpoint const& checkpoint) const override;
};

}  // namespace reshard::deepspeed
