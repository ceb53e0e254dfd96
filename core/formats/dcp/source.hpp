#pragma once

#include <filesystem>
#include <vector>

#include "core/containers/dcp/directory.hpp"
#include "core/formats/format.hpp"

namespace reshard::dcp {

/// Folders with a `.metadata` and .distcp files: PyTorch's own of any state dict, Megatron-Core's
/// torch_dist, Megatron-FSDP's. Only their content distinguishes them.
class DcpFormat : public Format {
 public:
  explicit DcpFormat(Flavour flavour) : flavour_(flavour) {}

  FormatId id() const override;
  FormatWords words() const override;
  std::string_view family() const override { return "dcp"; }
  bool probe(std::filesystem::path const& path) const override;
  std::string why_incomplete(std::filesystem::path const& path) const override;
  Checkpoint open(std::filesystem::path const& path, OpenChoice const& choice,
                  HeaderExchange const& exchange) const override;
  Inspection describe(std::filesystem::path const& path,
                      megatron::UserSizes const& sizes) const override;
  StoredView view(Checkpoint const& checkpoint, std::string const& prefix) const override;
  StateInventory inventory(Checkpoint const& checkpoint, StoredView const& view) const override;
  std::optional<RunRecord> run_record(Checkpoint const& checkpoint) const override;
  void add_optimizer_settings(Checkpoint const& checkpoint, RunRecord& record) const override;
  TargetTraits target() const override;
  void lay_out(MappedTarget const& job, TargetDraft& draft) const override;
  void lay_out_named(NamedTarget const& job, TargetDraft& draft) const override;
  std::optional<huggingface::Folder> model_files(Checkpoint const& checkpoint) const override;

 private:
  /// The owner of the names: torch_dcp is a plain DCP folder with those of Megatron.
  Flavour flavour_in(Checkpoint const& checkpoint) const;

  Flavour flavour_;
};

/// A plain DCP target whose keys are those of TargetNames. An Error of kind usage without
/// TargetNames.
void lay_out_mapped(MappedTarget const& job, TargetDraft& draft);

/// Boxes of tensors in safetensors files, as torch's HuggingFaceStorageWriter leaves them before
/// consolidation. Their format in job files is dcp.
class BoxedSafetensors final : public DcpFormat {
 public:
  BoxedSafetensors() : DcpFormat(Flavour::plain) {}

  bool probe(std::filesystem::path const& path) const override;
  std::string why_incomplete(std::filesystem::path const& path) const override;
  Checkpoint open(std::filesystem::path const& path, OpenChoice const& choice,
                  HeaderExchange const& exchange) const override;
  Inspection describe(std::filesystem::path const& path,
                      megatron::UserSizes const& sizes) const override;
};
Format const& boxed_safetensors();

/// The *.safetensors files of a folder, by name; a link out of the folder is an Error of kind
/// source.
std::vector<std::filesystem::path> safetensors_files(std::filesystem::path const& path);

/// Whether the first of them is marked as containing boxes, and no index contradicts it.
bool looks_like_boxed_safetensors(std::filesystem::path const& path);

}  // namespace reshard::dcp
