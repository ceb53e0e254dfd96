#pragma once

#include <memory>
#include <string>

#include "core/formats/dcp/source.hpp"

namespace reshard::dcp {

/// DCP folders of Megatron's programs. Their names are Megatron-Core's.
class MegatronDcp : public DcpFormat {
 public:
  NameOwner names() const override { return NameOwner::megatron; }
  StateInventory inventory(Checkpoint const& checkpoint, StoredView const& view) const override;

 protected:
  std::shared_ptr<CommonState const> made_common(Checkpoint const& checkpoint) const override;
};

/// Megatron-Core's distributed checkpointing.
class TorchDistFormat final : public MegatronDcp {
 public:
  FormatId id() const override { return FormatId::torch_dist; }
  FormatWords words() const override;
  StoredView view(Checkpoint const& checkpoint, std::string const& prefix) const override;
  std::optional<RunRecord> run_record(Checkpoint const& checkpoint) const override;
  void add_optimizer_settings(Checkpoint const& checkpoint, RunRecord& record) const override;
  TargetTraits target() const override;
  void lay_out(MappedTarget const& job, TargetDraft& draft) const override;
  void lay_out_named(NamedTarget const& job, TargetDraft& draft) const override;
  std::optional<huggingface::Folder> model_files(Checkpoint const& checkpoint) const override;

 protected:
  std::shared_ptr<CommonState const> stored_common(Directory const& directory,
                                                   Metadata const& metadata) const override;
  void add_states(Checkpoint& checkpoint, StampedFiles& files,
                  HeaderExchange const& exchange) const override;
};

/// Megatron-FSDP.
class FsdpDtensorFormat final : public MegatronDcp {
 public:
  FormatId id() const override { return FormatId::fsdp_dtensor; }
  FormatWords words() const override;
  StoredView view(Checkpoint const& checkpoint, std::string const& prefix) const override;
  TargetTraits target() const override;
  void lay_out(MappedTarget const& job, TargetDraft& draft) const override;
  void lay_out_named(NamedTarget const& job, TargetDraft& draft) const override;
  std::optional<huggingface::Folder> model_files(Checkpoint const& checkpoint) const override;
};

/// Megatron-LM with torch's FSDP2 (--ckpt-format torch_dcp). Its format in job files is dcp.
class TorchDcpFormat final : public MegatronDcp {
 public:
  StoredView view(Checkpoint const& checkpoint, std::string const& prefix) const override;

 protected:
  bool view_needs_common() const override { return true; }
};

/// A torch_dist or, with `fsdp`, fsdp_dtensor target with the names of mcore.toml.
void lay_out_dist(MappedTarget const& job, bool fsdp, TargetDraft& draft);

}  // namespace reshard::dcp
