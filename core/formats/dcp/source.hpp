#pragma once

#include <filesystem>
#include <memory>
#include <vector>

#include "core/containers/dcp/directory.hpp"
#include "core/formats/format.hpp"
#include "core/formats/headers/stamped_files.hpp"

namespace reshard::dcp {

/// Folders with a `.metadata` and .distcp files, of any state dict. Those of Megatron's programs
/// are formats of their own (torch_dist/formats.hpp); only their content distinguishes them.
class DcpFormat : public Format {
 public:
  FormatId id() const override { return FormatId::dcp; }
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
  TargetTraits target() const override;
  void lay_out(MappedTarget const& job, TargetDraft& draft) const override;
  void lay_out_named(NamedTarget const& job, TargetDraft& draft) const override;
  std::optional<huggingface::Folder> model_files(Checkpoint const& checkpoint) const override;
  /// The owner of the names in checkpoints.
  virtual NameOwner names() const { return NameOwner::family; }

 protected:
  // Steps of open() and describe(), for formats whose content is more than a state dict.

  /// Megatron's common state next to the items or among them; nullptr for none. Reads files.
  virtual std::shared_ptr<CommonState const> stored_common(Directory const& /*directory*/,
                                                           Metadata const& /*metadata*/) const {
    return nullptr;
  }
  /// The same, made from objects; nullptr for none. Reads them.
  virtual std::shared_ptr<CommonState const> made_common(Checkpoint const& /*checkpoint*/) const {
    return nullptr;
  }
  /// Whether view() needs the common state.
  virtual bool view_needs_common() const { return false; }
  /// Adds tensors that are parts of objects. Collective.
  virtual void add_states(Checkpoint& /*checkpoint*/, StampedFiles& /*files*/,
                          HeaderExchange const& /*exchange*/) const {}
};

/// The format that reads a folder of this flavour.
DcpFormat const& format_of(Flavour flavour);

/// Properties of a target in chunks under the source's keys.
struct KeptKeysTarget {
  std::filesystem::path folder = {};  ///< of the items, relative to the target
  bool nested = true;                 ///< `.metadata` has the paths of keys in the state dict
  bool side_files = true;             ///< files next to the source's items are copied along
};
void lay_out_kept_keys(NamedTarget const& job, KeptKeysTarget const& target, TargetDraft& draft);

/// A plain DCP target whose keys are those of TargetNames. An Error of kind usage without
/// TargetNames.
void lay_out_mapped(MappedTarget const& job, TargetDraft& draft);

/// Boxes of tensors in safetensors files, as torch's HuggingFaceStorageWriter leaves them before
/// consolidation. Their format in job files is dcp.
class BoxedSafetensors final : public DcpFormat {
 public:
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
