#pragma once

#include "core/formats/format.hpp"

namespace reshard::megatron {

/// Folders of mp_rank_* directories.
class MegatronFormat final : public Format {
 public:
  FormatId id() const override { return FormatId::megatron; }
  FormatWords words() const override;
  bool probe(std::filesystem::path const& path) const override;
  Checkpoint open(std::filesystem::path const& path, OpenChoice const& choice,
                  HeaderExchange const& exchange) const override;
  Inspection describe(std::filesystem::path const& path, UserSizes const& sizes) const override;
  StoredView view(Checkpoint const& checkpoint, std::string const& prefix) const override;
  std::optional<RunRecord> run_record(Checkpoint const& checkpoint) const override;
  TargetTraits target() const override;
  void lay_out(MappedTarget const& job, TargetDraft& draft) const override;
  void lay_out_named(NamedTarget const& job, TargetDraft& draft) const override;
  std::optional<huggingface::Folder> model_files(Checkpoint const& checkpoint) const override;
};

}  // namespace reshard::megatron
