#pragma once

#include "core/formats/format.hpp"

namespace reshard::huggingface {

/// Folders of safetensors files that hold whole tensors, with or without an index.
class HuggingFaceFormat : public Format {
 public:
  FormatId id() const override { return FormatId::huggingface; }
  FormatWords words() const override;
  bool probe(std::filesystem::path const& path) const override;
  Format const& refined(std::filesystem::path const& path) const override;
  std::string why_incomplete(std::filesystem::path const& path) const override;
  Checkpoint open(std::filesystem::path const& path, OpenChoice const& choice,
                  HeaderExchange const& exchange) const override;
  Inspection describe(std::filesystem::path const& path,
                      megatron::UserSizes const& sizes) const override;
  TargetTraits target() const override;
  void lay_out(MappedTarget const& job, TargetDraft& draft) const override;
  void lay_out_named(NamedTarget const& job, TargetDraft& draft) const override;
  std::optional<Folder> model_files(Checkpoint const& checkpoint) const override;

 protected:
  /// The files of a folder that are read.
  virtual Folder opened(std::filesystem::path const& path, bool by_headers) const {
    return open_folder(path, by_headers);
  }
};

}  // namespace reshard::huggingface
