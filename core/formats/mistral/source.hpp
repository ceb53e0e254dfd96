#pragma once

#include "core/formats/huggingface/source.hpp"

namespace reshard::mistral {

/// Folders as Mistral's own programs read them: consolidated*.safetensors under Mistral's names,
/// and params.json. docs/formats/mistral.md.
class MistralFormat final : public huggingface::HuggingFaceFormat {
 public:
  FormatId id() const override { return FormatId::mistral; }
  FormatWords words() const override;
  std::string_view family() const override { return reshard::name(FormatId::huggingface); }
  std::string_view names_map() const override { return "mistral"; }
  bool probe(std::filesystem::path const& path) const override;
  Format const& refined(std::filesystem::path const& /*path*/) const override { return *this; }
  Checkpoint open(std::filesystem::path const& path, OpenChoice const& choice,
                  HeaderExchange const& exchange) const override;
  TargetTraits target() const override;
  void lay_out(MappedTarget const& job, TargetDraft& draft) const override;
  void lay_out_named(NamedTarget const& job, TargetDraft& draft) const override;

 protected:
  huggingface::Folder opened(std::filesystem::path const& path, bool by_headers) const override;
};

}  // namespace reshard::mistral
